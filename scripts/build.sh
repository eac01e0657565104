#!/usr/bin/env bash
# Configures and builds TARGETS into FOLDER, then links the tool and the package into .venv. Rebuilds nothing that is
# built. Usage: scripts/build.sh FOLDER JOBS TARGET...
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
jobs=$2
shift 2
# Clones share what ccache has: paths below the clone count as relative.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
mkdir -p "$folder"
if [ ! -e "$folder/build.ninja" ]; then
  echo "closeranks build: configuring $folder"
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log" >&2
    echo "closeranks build: CMake stopped; the reason is above" >&2
    exit 1
  }
fi
if ! ninja -C "$folder" -n "$@" | grep -q 'no work to do'; then
  echo "closeranks build: compiling with $jobs jobs (a first build takes several minutes)"
fi
NINJA_STATUS="[%f/%t %es] " ninja -C "$folder" -j "$jobs" "$@"
.venv/bin/python scripts/install_package.py --build "$folder"
