#!/usr/bin/env bash
# Builds pp and passes all its tests; the last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/.."
tools/build.sh || exit 1
log=build/check.log
ctest --test-dir build --output-on-failure 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
passed=$(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed' "$log")
failed=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*(\*\*\*|Failed)' "$log")
echo "$passed passed, $failed failed"
[ "$passed" -gt 0 ] && exit "$status"
exit 1
