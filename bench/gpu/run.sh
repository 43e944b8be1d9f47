#!/usr/bin/env bash
# Everything that only a GPU can tell, in one command that ends in time: the most telling parts come first.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: FOLDER/bench/gpu/run.sh [--minutes N] [--only PART] [RESULTS]     FOLDER is what bench/gpu/pack.sh packed
# Needs CUDA's toolkit, CMake and a C++ compiler; takes cuBLASLt, cuDNN and NCCL of pip; PyTorch and MPI where there are
# such. FOLDER/built may have the `lib` and `bin` of an earlier build with the same libraries: then none is made.
# All of it ends within N minutes (9). A part gets at most its share, which grows where N is more than 9, and what is
# left; the others go on if it fails. Every row is in RESULTS/PART as soon as it is known. RESULTS/summary has a line
# for each part: done, failed, stopped, or not run.
# SIGINT and SIGTERM stop the part that runs and keep its rows. (test/run/device_bench.py rehearses all of it.)
set -uo pipefail
minutes=9 only="" results=""
while [ $# -gt 0 ]; do
  case $1 in
  --minutes) minutes=${2:?--minutes needs a number} && shift ;;
  --only) only=${2:?--only needs the name of a part} && shift ;;
  -*) echo "run.sh: there is no option \`$1\`" >&2 && exit 2 ;;
  *) results=$1 ;;
  esac
  shift
done
end=$(awk -v minutes="$minutes" 'BEGIN { if (minutes !~ /^[0-9.]+$/) exit 1; printf "%d", 60 * minutes }') ||
  { echo "run.sh: expected --minutes N, a number; got \`$minutes\`" >&2 && exit 2; }
folder=$(realpath "$(dirname "$0")/../..") && results=$(realpath -m "${results:-$folder/results}") || exit
mkdir -p "$results" && cd "$folder" && rm -f "$results/summary" || exit
export PYTHONUNBUFFERED=1
failed=0 signal=""
declare -A names=() from=() # of the parts that run, by process
say() { printf '%s\n' "$1" | tee -i -a "$results/summary"; }

# The parts that run end, and whatever they started: `timeout` leads a group of its own and hands the signal on.
stop() {
  signal=$1
  for process in "${!names[@]}"; do kill -TERM "$process" 2> /dev/null; done
}
trap 'stop SIGINT' INT
trap 'stop SIGTERM' TERM

# Starts a part beside those that run; `finish` waits for all of them.
beside() { # NAME SECONDS COMMAND..
  local name=$1 seconds=$(($2 * (end > 540 ? end : 540) / 540)) left=$((end - SECONDS))
  shift 2
  if [ -n "$only" ] && [ "$only" != "$name" ]; then return; fi
  if [ -n "$signal" ]; then say "$name: not run, stopped by $signal" && return; fi
  if [ "$left" -le 0 ]; then failed=1 && say "$name: not run, no time is left of $minutes minutes" && return; fi
  echo "== $name"
  : > "$results/$name"
  timeout --kill-after=5 $((seconds < left ? seconds : left)) "$@" > "$results/$name" 2>&1 &
  names[$!]=$name from[$!]=$SECONDS
  if [ -n "$signal" ]; then stop "$signal"; fi # it came before there was something to stop
}

finish() {
  local process status followers=()
  for process in "${!names[@]}"; do
    tail -n +1 -s 0.5 --pid="$process" -f "$results/${names[$process]}" &
    followers+=($!)
  done
  while [ ${#names[@]} -gt 0 ]; do
    process=""
    wait -n -p process "${!names[@]}"
    status=$?
    if [ -n "$process" ]; then told "$process" $status; fi # else a signal ended the waiting, not a part
  done
  wait "${followers[@]}"
}

told() { # PROCESS STATUS
  local name=${names[$1]} took
  took="$((SECONDS - from[$1])) s, $(grep -c '' "$results/$name") lines"
  unset "names[$1]" "from[$1]"
  if [ -n "$signal" ]; then
    say "$name: stopped by $signal after $took"
  elif [ "$2" = 0 ]; then
    say "$name: done in $took"
  elif [ "$2" = 124 ] || [ "$2" = 137 ]; then
    failed=1 && say "$name: stopped after $took"
  else
    failed=1 && say "$name: failed with $2 after $took"
  fi
}

# A part alone: what is timed has the GPU to itself.
part() {
  beside "$@"
  finish
}

versions() {
  date -u
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  cmake --version | head -n 1
  c++ --version | head -n 1
  python3 -c 'import torch; print("PyTorch", torch.__version__)' 2> /dev/null || echo "no PyTorch"
  printf '%s\n' "${options[@]}" "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
}

# Where the toolkit lacks a library, pip's serves. The options name the files; compilers find headers by the variable.
options=() libraries=""
while IFS='=' read -r key value; do
  case $key in
  headers) export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$value ;;
  libraries) libraries=$libraries:$value ;;
  *) options+=("-D$key=$value") ;;
  esac
done < <(python3 bench/gpu/libraries.py)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64$libraries
generator=() && command -v ninja > /dev/null && generator=(-G Ninja)

export -f versions 2> /dev/null
part versions 30 bash -c "$(declare -p options); versions"
part configure 60 cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DPP_COMPILER=OFF -DPP_CPU=OFF \
  -DPP_CUDA=ON -DPP_WERROR=OFF -DCMAKE_CUDA_ARCHITECTURES="${PP_ARCHITECTURES:-90}" -DPP_GTEST="$folder/googletest" \
  -DCMAKE_PREFIX_PATH="$folder/usr" "${options[@]}"
if [ -d built ]; then
  part build 30 cp -r built/. build/
else
  part build 180 cmake --build build -j "$(nproc)" --target pp-runtime-cuda pp-gpu-kernels pp-gpu-kernel-tests
fi
part link 60 python3 bench/gpu/link.py programs
# What is judged shares the GPU. cuDNN compiles a kernel for each shape: it sees some of the tests.
tests=build/bin/pp-gpu-kernel-tests
beside gradients 120 python3 test/gpu/gradients.py programs text.txt few
for shard in 0 1 2 3 4 5; do
  beside kernel-tests-$shard 150 env PP_CUDNN=off GTEST_TOTAL_SHARDS=6 GTEST_SHARD_INDEX=$shard $tests --gtest_brief=1
done
beside kernel-tests-cudnn 120 $tests --gtest_brief=1 --gtest_filter='KernelsTiles.*:KernelsAttention.*:KernelsChunks.*'
beside memcheck 150 bench/gpu/tools.sh memcheck $tests
beside racecheck 150 bench/gpu/tools.sh racecheck $tests
finish
part kernels 170 python3 bench/gpu/kernels.py build/bin/pp-gpu-kernels
part steps 200 python3 bench/gpu/step.py programs text.txt
part counters 60 bench/gpu/tools.sh counters build/bin/pp-gpu-kernels
part gradients-more 200 python3 test/gpu/gradients.py programs text.txt more
part processes 60 python3 test/gpu/gradients.py programs text.txt processes
part gradients-rest 300 python3 test/gpu/gradients.py programs text.txt rest
if [ "$signal" = SIGINT ]; then exit 130; elif [ "$signal" = SIGTERM ]; then exit 143; fi
exit $failed
