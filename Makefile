# closeranks: one command each, all set-up included. `make help` lists them.
# Everything lives in .venv (python, the tool) and build/ (objects, reports); `make clean` removes build/.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BUILD := build/release
JOBS ?= $(shell nproc)

.PHONY: help
help:
	@echo "make demo   train on 4 workers, lose four of them in four ways, show what it cost (about two minutes)"
	@echo "make test   build, lint and run every test; ends with one summary line"
	@echo "make bench  all_reduce beside Gloo and Open MPI, alternating in one run (two minutes)"
	@echo "make soak   long kill matrices, more seeds, sanitizers and fuzzing (an hour)"
	@echo "make build  only set up and build; then .venv/bin/closeranks and 'import closeranks' in .venv/bin/python"
	@echo "make lint   clang-format, clang-tidy on changed files, ruff, mypy"
	@echo "make clean  remove build/"

# Debian packages, .venv and its python packages; does nothing when all is there.
.PHONY: setup setup-test
setup:
	@scripts/setup.sh build
setup-test:
	@scripts/setup.sh test

# The tools, the library and the torch plugin; build-all adds the tests.
.PHONY: build build-all
build: setup
	@scripts/build.sh $(BUILD) $(JOBS) closeranks closeranks-sim closeranks-bench-worker closeranks_library closeranks_plugin
build-all: setup-test
	@scripts/build.sh $(BUILD) $(JOBS) all

.PHONY: demo
demo: build
	@.venv/bin/closeranks demo

# Without Open MPI (no network, say) the bench measures the rest.
.PHONY: bench
bench: build
	-@scripts/setup.sh bench
	@.venv/bin/closeranks bench

.PHONY: test
test: build-all
	@.venv/bin/python scripts/run_tests.py --build $(BUILD) --jobs $(JOBS)

.PHONY: soak
soak: build-all
	@.venv/bin/python scripts/run_tests.py --build $(BUILD) --jobs $(JOBS) --soak

.PHONY: lint
lint: build-all
	@.venv/bin/python scripts/lint.py --build $(BUILD)

.PHONY: clean
clean:
	rm -rf build
