#!/usr/bin/env bash
# Writes the references of the dialects, passes and operations from their .td files; --check fails where one is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  '' | --check) ;;
  *) echo "usage: tools/docs.sh [--check]" >&2; exit 2 ;;
esac
tblgen=$(command -v mlir-tblgen || echo /usr/lib/llvm-19/bin/mlir-tblgen)
includes=(-I . -I "$("$(dirname "$(readlink -f "$tblgen")")/llvm-config" --includedir)")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# write SOURCE RESULT FLAG..: mlir-tblgen's own first line replaced, and a blank line where it glues a heading to text.
write() {
  local source=$1 result=$2 raw=$out/raw
  shift 2
  "$tblgen" "$@" "${includes[@]}" "$source" >"$raw" # apart, so that its failure ends this script
  mkdir -p "$out/$(dirname "$result")"
  { echo "<!-- Written by tools/docs.sh from $source; edit that file, not this one. -->"
    sed -e 1d -e 's/\([^#]\)\(##* `\)/\1\n\2/' -e 's/[[:space:]]*$//' -e '$a\' "$raw" |
      sed -E 's/^(#+ |Traits: )/\n&/' | cat -s; } >"$out/$result"
}
write dialect/pipeline/Ops.td dialect/pipeline/Pipeline.md -gen-dialect-doc -dialect=pipeline
write dialect/nn/Ops.td dialect/nn/Nn.md -gen-dialect-doc -dialect=nn
write passes/Passes.td passes/PASSES.md -gen-pass-doc
mkdir -p "$out/frontend"
"$(dirname "$(readlink -f "$tblgen")")/llvm-tblgen" -dump-json "${includes[@]}" dialect/nn/Ops.td >"$out/nn.json"
python3 tools/pages/operations.py "$out/nn.json" frontend/model/ModelOps.cpp >"$out/frontend/OPERATIONS.md"

status=0
for file in dialect/pipeline/Pipeline.md dialect/nn/Nn.md passes/PASSES.md frontend/OPERATIONS.md; do
  if [ "${1:-}" != --check ]; then
    cp "$out/$file" "$file"
  elif ! diff -u "$file" "$out/$file" >"$out/diff" 2>&1; then
    head -40 "$out/diff"
    echo "$file is not what its .td file says; run tools/docs.sh and commit the result"
    status=1
  fi
done
exit $status
