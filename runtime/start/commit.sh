#!/usr/bin/env bash
# Writes a header with the commit of the tree SOURCE. Every build runs it; the file changes with the commit only.
# usage: commit.sh SOURCE OUTPUT
source=$(realpath "$1") output=$2 commit=unknown
if [ "$(git -C "$source" rev-parse --show-toplevel 2>/dev/null)" = "$source" ]; then # not a copy inside of another tree
  commit=$(git -C "$source" describe --always --abbrev=10 --exclude='*' --dirty=', modified')
fi
text="// The commit that is built; written by runtime/start/commit.sh.
#define PP_COMMIT \"$commit\""
[ "$(cat "$output" 2>/dev/null)" = "$text" ] || echo "$text" > "$output"
