#!/usr/bin/env bash
# Runs pp-fuzz with ten seeds of 5000 cases each and prints a table; fails if one of them does. It takes 15 minutes.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: test/fuzz/seeds.sh PP_FUZZ FOLDER [SEED..]
# What a seed prints stands in FOLDER/SEED.log, programs on which proof and run disagree in FOLDER/SEED.
set -uo pipefail
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
fuzz=$1 folder=$2
shift 2
[ $# -gt 0 ] || set -- 1 2 31337 424242 20260722 7 1000003 777 271828 987654321
mkdir -p "$folder"
status=0
printf '%-12s %8s %8s %13s %9s %8s\n' seed passed failed 'proved clean' stricter seconds
for seed in "$@"; do
  start=$SECONDS
  "$fuzz" --cases=5000 --seed="$seed" --jobs="${PP_FUZZ_JOBS:-1}" --keep="$folder/$seed" \
    >"$folder/$seed.log" 2>&1
  code=$?
  [ $code -eq 0 ] || status=1
  read -r passed failed < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$folder/$seed.log") ||
    passed=crash failed=$code
  read -r proved stricter < <(awk '$1 == "all" { print $3, $4 }' "$folder/$seed.log") || proved=- stricter=-
  printf '%-12s %8s %8s %13s %9s %8s\n' "$seed" "$passed" "$failed" "$proved" "$stricter" $((SECONDS - start))
done
exit $status
