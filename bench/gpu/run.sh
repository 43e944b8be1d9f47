#!/usr/bin/env bash
# Everything that only a GPU can tell, in one command of under ten minutes: tests, speed, a step beside PyTorch's.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: FOLDER/bench/gpu/run.sh [RESULTS]     where FOLDER is what bench/gpu/pack.sh packed
# Needs CUDA's toolkit, CMake and a C++ compiler; PyTorch where there is one. Each part goes on if another fails.
set -uo pipefail
folder=$(realpath "$(dirname "$0")/../..") && cd "$folder" || exit
results=${1:-$folder/results} && mkdir -p "$results"
target=$(cat target) failed=0
part() { # NAME SECONDS COMMAND..
  local name=$1 seconds=$2 && shift 2
  echo "== $name"
  timeout "$seconds" "$@" > "$results/$name" 2>&1
  local status=$?
  [ $status = 0 ] || { failed=1 && echo "-- failed with $status"; }
  tail -n 60 "$results/$name"
}

if [ "$target" = cuda ]; then
  # Where there is no cuDNN beside the toolkit, PyTorch's may be there.
  cudnn=$(python3 -c 'import nvidia.cudnn as its; print(list(its.__path__)[0])' 2> /dev/null) &&
    export CUDNN_HOME=$cudnn LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:$cudnn/lib
  generator=() && command -v ninja > /dev/null && generator=(-G Ninja)
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$results/gpu"
  part configure 60 cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DPP_COMPILER=OFF -DPP_CPU=OFF \
    -DPP_MPI=OFF -DPP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${PP_ARCHITECTURES:-90}" -DPP_GTEST="$folder/googletest" \
    -DCMAKE_PREFIX_PATH="$folder/usr"
  part build 240 cmake --build build -j "$(nproc)" --target pp-runtime-cuda pp-gpu-kernel-tests pp-gpu-kernels
fi
part link 60 python3 bench/gpu/link.py programs
part gradients 150 python3 test/gpu/gradients.py programs text.txt
if [ "$target" = cuda ]; then
  # cuDNN compiles a kernel for each shape: it sees some of them.
  PP_CUDNN=off part kernel-tests 120 build/bin/pp-gpu-kernel-tests --gtest_brief=1
  part kernel-tests-cudnn 90 build/bin/pp-gpu-kernel-tests --gtest_brief=1 --gtest_filter='KernelsTiles.*'
  part steps 240 python3 bench/gpu/step.py programs text.txt
  part kernels 150 python3 bench/gpu/kernels.py build/bin/pp-gpu-kernels
fi
exit $failed
