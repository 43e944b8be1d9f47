#!/usr/bin/env bash
# Runs the toolkit's checkers over the kernels' tests, and its counters over timed kernels; says where there are none.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tools.sh memcheck|racecheck TESTS     (pp-gpu-kernel-tests)
#        tools.sh counters KERNELS             (pp-gpu-kernels: one launch each of its first shape)
set -uo pipefail
export PP_CUDNN=off # our own kernels
what=$1 program=$2
need() { command -v "$1" > /dev/null || { echo "no $1 on this machine" && exit 0; }; }

checked() { # TOOL TESTS
  need compute-sanitizer
  compute-sanitizer --tool "$1" --error-exitcode 1 "$program" --gtest_brief=1 --gtest_filter="$2"
}

metrics=gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes.sum
metrics+=,sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active
metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread
for reason in long_scoreboard barrier math_pipe_throttle; do
  metrics+=,smsp__average_warps_issue_stalled_${reason}_per_issue_active.ratio
done
counted() { # OP FUNCTION
  echo "== $1"
  ncu --clock-control none --metrics "$metrics" -k "regex:$2" --launch-skip 1 -c 1 --kill yes "$program" "$1" |
    grep -E '^ +[a-z_]+[.a-z_]* |\(.*\) Context'
}

case $what in
memcheck) checked memcheck 'KernelsRows.*:KernelsCrossEntropy.*:KernelsTiles.LengthsAroundTheTiles' ;;
racecheck) checked racecheck 'KernelsTiles.LengthsAroundTheTiles:KernelsCrossEntropy.*' ;;
counters)
  need ncu
  counted attention forwardKernel
  counted attention_bwd keyGradientKernel
  counted attention_bwd queryGradientKernel
  counted rmsnorm_bwd normBackwardKernel
  counted layernorm_bwd normBackwardKernel
  counted adamw adamKernel
  counted embedding_dw embeddingBackwardKernel
  ;;
*) echo "tools.sh: expected memcheck, racecheck or counters; got \`$what\`" >&2 && exit 2 ;;
esac
