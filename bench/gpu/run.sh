#!/usr/bin/env bash
# Everything that only a GPU can tell, in one command that ends in time: the most telling parts come first.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: FOLDER/bench/gpu/run.sh [--minutes N] [--only PART] [RESULTS]     FOLDER is what bench/gpu/pack.sh packed
# Needs CUDA's toolkit, CMake and a C++ compiler; takes cuBLASLt, cuDNN and NCCL of pip; PyTorch where there is one.
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
failed=0 running="" signal="" name=""
say() { printf '%s\n' "$1" | tee -i -a "$results/summary"; }

# The part that runs ends, and whatever it started: `timeout` leads a group of its own and hands the signal on.
stop() {
  signal=$1
  [ -z "$running" ] || kill -TERM "$running" 2> /dev/null
}
trap 'stop SIGINT' INT
trap 'stop SIGTERM' TERM

part() { # NAME SECONDS COMMAND..
  local seconds=$(($2 * (end > 540 ? end : 540) / 540)) left=$((end - SECONDS)) from=$SECONDS status follower
  name=$1 && shift 2
  if [ -n "$only" ] && [ "$only" != "$name" ]; then return; fi
  if [ -n "$signal" ]; then say "$name: not run, stopped by $signal" && return; fi
  if [ "$left" -le 0 ]; then failed=1 && say "$name: not run, no time is left of $minutes minutes" && return; fi
  echo "== $name"
  : > "$results/$name"
  timeout --kill-after=5 $((seconds < left ? seconds : left)) "$@" > "$results/$name" 2>&1 &
  running=$!
  if [ -n "$signal" ]; then stop "$signal"; fi # it came before there was something to stop
  tail -n +1 -s 0.5 --pid="$running" -f "$results/$name" &
  follower=$!
  wait "$running"
  status=$?
  while kill -0 "$running" 2> /dev/null; do # a signal ended the waiting, not the part
    wait "$running"
    status=$?
  done
  running=""
  wait "$follower"
  local took="$((SECONDS - from)) s, $(grep -c '' "$results/$name") lines"
  if [ -n "$signal" ]; then
    say "$name: stopped by $signal after $took"
  elif [ $status = 0 ]; then
    say "$name: done in $took"
  elif [ $status = 124 ] || [ $status = 137 ]; then
    failed=1 && say "$name: stopped after $took"
  else
    failed=1 && say "$name: failed with $status after $took"
  fi
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
part build 180 cmake --build build -j "$(nproc)" --target pp-runtime-cuda pp-gpu-kernels
part link 60 python3 bench/gpu/link.py programs
part gradients 75 python3 test/gpu/gradients.py programs text.txt few
part kernels 90 python3 bench/gpu/kernels.py build/bin/pp-gpu-kernels
part steps 150 python3 bench/gpu/step.py programs text.txt
part build-tests 120 cmake --build build -j "$(nproc)" --target pp-gpu-kernel-tests
# cuDNN compiles a kernel for each shape: it sees some of them.
part kernel-tests 120 env PP_CUDNN=off build/bin/pp-gpu-kernel-tests --gtest_brief=1
part kernel-tests-cudnn 90 build/bin/pp-gpu-kernel-tests --gtest_brief=1 --gtest_filter='KernelsTiles.*'
part gradients-rest 300 python3 test/gpu/gradients.py programs text.txt rest
if [ "$signal" = SIGINT ]; then exit 130; elif [ "$signal" = SIGTERM ]; then exit 143; fi
exit $failed
