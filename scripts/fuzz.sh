#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (default 60) from the corpus in tests/fuzz/corpus. New inputs are kept in
# build/fuzz/corpus, findings in build/fuzz/findings; one finding makes the exit status 1.
# Usage: scripts/fuzz.sh [SECONDS] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz.sh: SECONDS must be a positive whole number, not '$seconds'" >&2
  exit 2
fi
if ! command -v clang++-19 >/dev/null; then
  echo "fuzz.sh: clang++-19 is missing: install clang-19 and libclang-rt-19-dev" >&2
  exit 2
fi

build=build/fuzz
echo "fuzz: building (clang++-19, address and undefined-behaviour sanitizers)"
# -O1: half the compile time of -O2 and nearly its speed once the sanitizers are in.
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_COMPILER=clang-19 -DCLOSERANKS_FUZZ=ON \
  -DCLOSERANKS_TORCH=OFF -DCLOSERANKS_TESTS=OFF -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O1 -g1" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
ninja -C "$build" ${JOBS:+-j "$JOBS"} fuzz >"$build.log" 2>&1 || { tail -50 "$build.log" >&2; exit 1; }

failed=0
for program in "$build"/fuzz_*; do
  name=$(basename "$program")
  name=${name#fuzz_}
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  found=$build/corpus/$name
  findings=$build/findings/$name
  mkdir -p "$found" "$findings"
  log=$build/$name.log
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
      -artifact_prefix="$findings/" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz: $name: $executed inputs in $seconds s, no finding"
  else
    failed=1
    echo "fuzz: $name: a finding in $findings; the end of $log:"
    tail -25 "$log"
  fi
done
exit $failed
