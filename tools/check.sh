#!/usr/bin/env bash
# Builds pp and passes its tests; the last line is `N passed, N failed`, with `, N skipped` where some were.
#
# usage: check.sh [--quick|--long]     --quick: unit tests and what test/tests.txt calls quick; --long: everything
set -uo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  '') some=(-LE long) ;;
  --quick) some=(-LE 'long|default') ;;
  --long) some=() ;;
  *) echo "usage: tools/check.sh [--quick|--long]" >&2; exit 2 ;;
esac
tools/build.sh --tests || exit 1
log=build/check.log
# Some tests wait most of their time: two more at once than there are cores.
ctest --test-dir build "${some[@]}" -j "$(($(nproc) + 2))" --output-on-failure 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
echo "the ten slowest tests, in seconds:"
sed -nE 's/.*Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 \1/p' "$log" | sort -rn | head -n 10
read -r failed total < <(sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1 \2/p' "$log")
skipped=$(grep -c '\*\*\*Skipped' "$log")
passed=$((${total:-0} - ${failed:-0} - skipped))
echo "$passed passed, ${failed:-0} failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
[ "$passed" -gt 0 ] && exit "$status"
exit 1
