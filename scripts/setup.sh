#!/usr/bin/env bash
# Installs what is missing and says what it does: Debian packages, .venv, its python packages.
# Usage: scripts/setup.sh build|test|bench   (test: also what lint and fuzzing need; bench: also Open MPI)
# Does nothing, quickly, when everything is there. Stops with one sentence when it cannot go on.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-build}

say() { echo "closeranks setup: $*"; }
stop() { echo "closeranks setup: $*" >&2; exit 1; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || stop "no $python found: install python3 (3.11), or set PYTHON=/path/to/python3.11"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || stop "$python is Python $version, but closeranks is built for Python 3.11: set PYTHON=/path/to/python3.11"

packages=(g++ make cmake ninja-build ccache libasio-dev libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
          libssl-dev libgtest-dev libgmock-dev libhwy-dev)
[ "$purpose" = test ] && packages+=(clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev git)
[ "$purpose" = bench ] && packages+=(openmpi-bin libopenmpi-dev)
"$python" -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || packages+=(python3-dev)

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    root=()
    if [ "$(id -u)" != 0 ]; then
      command -v sudo >/dev/null || stop "these Debian packages are missing and neither root nor sudo is here: ${missing[*]}"
      root=(sudo)
    fi
    say "installing Debian packages: ${missing[*]}"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    if ! { "${root[@]}" apt-get update && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
           apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
      tail -n 5 "$log" >&2
      stop "apt-get could not install ${missing[*]} (its last lines are above: no network, no rights, or a full disk)"
    fi
  fi
else
  say "not a Debian system: CMake will name what is missing (README: other distributions)"
fi

if [ -x .venv/bin/python ]; then
  have=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo broken)
  [ "$have" = 3.11 ] || stop ".venv has Python $have instead of 3.11: remove .venv and run again"
else
  say "making .venv"
  "$python" -m venv .venv || stop "could not make .venv with $python -m venv"
fi

stamp=.venv/.closeranks-requirements
if ! cmp -s requirements.txt "$stamp"; then
  if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    free_kib=$(df --output=avail -k .venv | tail -n 1)
    [ "$free_kib" -gt 9000000 ] || stop "torch needs about 9 GB here and $((free_kib / 1000000)) GB are free"
  fi
  say "installing python packages (torch==2.15.0 is large: one to three minutes)"
  .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.txt 2>&1 |
    sed -u -n 's/^Collecting \([^ (]*\).*/closeranks setup:   \1/p; /^ERROR/p; /^Successfully/s/ installed.*/ installed./p' ||
    stop "pip could not install requirements.txt (its error is above: no network, a full disk, or a pip configuration that forbids these versions)"
  cp requirements.txt "$stamp"
fi
