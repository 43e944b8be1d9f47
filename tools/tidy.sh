#!/usr/bin/env bash
# Runs clang-tidy-19, as .clang-tidy says, over sources that a build has compiled; exit code 0: nothing was found.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tools/tidy.sh [BUILD [REGEX OF PATHS]..]    `tools/tidy.sh build /tools/` takes minutes, all of it an hour.
# Kernels that use g++'s own vector functions (runtime/kernels/Loops*.cpp, Bf16*.cpp) clang cannot read.
# BUILD has compile_commands.json (preset `dev`). Exit code 77: clang-tidy-19 or that file is missing.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
shift
command -v run-clang-tidy-19 || { echo "run-clang-tidy-19 is not installed (package clang-tidy-19)"; exit 77; }
[ -e "$build/compile_commands.json" ] || { echo "$build has no compile_commands.json (preset dev)"; exit 77; }
run-clang-tidy-19 -quiet -p "$build" -j "$(nproc)" "${@:-$PWD/.*\.cpp}" 2>/dev/null |
  grep -v 'clang-tidy-19 \|warnings generated\|^$'
exit "${PIPESTATUS[0]}"
