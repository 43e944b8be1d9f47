#!/usr/bin/env bash
# Installs what pp needs on Debian 12 and builds it into build/; with --tests also what its tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(cmake g++ ninja-build python3 llvm-19-dev libmlir-19-dev mlir-19-tools lld-19 libopenmpi-dev openmpi-bin
          libdnnl-dev libopenblas-pthread-dev nlohmann-json3-dev)
preset=release
case "${1:-}" in
  '') if grep -qs '^PP_TESTS:BOOL=ON' build/CMakeCache.txt; then preset=check; fi ;; # they were built, and stay
  --tests) preset=check ;;
  *) echo "usage: tools/build.sh [--tests]" >&2; exit 2 ;;
esac
if [ $preset = check ]; then packages+=(git libgtest-dev); fi
mkdir -p build

# quietly LOG COMMAND..: what it says goes into a file, whose end is shown if it fails.
quietly() {
  local log=$1 && shift
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log"
    echo "pp: failed: $* (all of it: $log)" >&2
    exit 1
  fi
}

# telling LOG COMMAND..: the same, and every minute a line says how far it is, for whoever reads a file.
telling() {
  local log=$1 began=$SECONDS
  quietly "$@" &
  local job=$! next=$minute
  while kill -0 $job 2>/dev/null; do
    sleep 1
    if [ $((SECONDS - began)) -lt $next ]; then continue; fi
    next=$((next + minute))
    kill -0 $job 2>/dev/null && echo "pp: $(((SECONDS - began) / 60)) min: $(grep -aoE '^\[[0-9]+/[0-9]+\]' "$log" |
      tail -n 1 | tr -d '[]' | sed 's:/: of :') steps of the build are done"
  done
  wait $job
}
minute=${PP_MINUTE:-60} # tests have shorter ones

# found NAME: whether configure has found what the variable of its cache names.
found() { sed -nE "s/^$1:[A-Z]+=//p" build/CMakeCache.txt | grep -qvE '^$|NOTFOUND$|^OFF$'; }

# What programs of this build can do.
describe() {
  local said="pp: programs will run in one process"
  if found PP_MPI && found MPI_C_LIB_NAMES; then
    said+=" and over MPI"
  else
    said+=", not over MPI, which is not here"
  fi
  if found PP_CUDA && found PP_NVCC; then
    said+="; on CPUs and on NVIDIA GPUs"
    if found PP_NCCL; then said+=", between GPUs over NCCL"; else said+=", one process alone, for NCCL is not here"; fi
    if found PP_CUDNN_INCLUDE; then said+=", with the attention of cuDNN"; fi
  else
    said+="; on CPUs, and not on GPUs, for the CUDA toolkit is not here"
  fi
  echo "$said"
}

cores=$(nproc)
least=7 most=27 # minutes of all cores together: measured on a new machine, estimated for a slow one
if [ ! -e build/bin/pp-compile ]; then
  what="the compiler and its runtime"
  if [ $preset = check ]; then what="the compiler, its runtime and the tests" least=11 most=42; fi
  echo "pp: builds $what into build/: $(((least + cores - 1) / cores)) to $(((most + cores - 1) / cores)) minutes on" \
    "these $cores cores, later only what has changed"
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "pp: installs these packages of Debian and what they need, a minute or two (log: build/apt.log): ${missing[*]}"
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  quietly build/apt.log $as_root apt-get update
  quietly build/apt.log $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    "${missing[@]}"
fi

started=$SECONDS
quietly build/configure.log cmake --preset $preset
describe
if [ -t 1 ]; then
  cmake --build build # ninja's one line
else
  telling build/build.log cmake --build build
fi
echo "pp: built in $(((SECONDS - started) / 60)) minutes $(((SECONDS - started) % 60)) seconds"
