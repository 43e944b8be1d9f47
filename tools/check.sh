#!/usr/bin/env bash
# Builds pp and passes its tests; the last line is `N passed, N failed`, with `, N skipped` where some were.
#
# usage: check.sh [--long]     with what test/tests.txt calls long, too, which takes as much time again
set -uo pipefail
cd "$(dirname "$0")/.."
tools/build.sh --tests || exit 1
log=build/check.log
some=(-LE long)
[ "${1:-}" = --long ] && some=()
ctest --test-dir build "${some[@]}" -j "$(nproc)" --output-on-failure 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
read -r failed total < <(sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1 \2/p' "$log")
skipped=$(grep -c '\*\*\*Skipped' "$log")
passed=$((${total:-0} - ${failed:-0} - skipped))
echo "$passed passed, ${failed:-0} failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
[ "$passed" -gt 0 ] && exit "$status"
exit 1
