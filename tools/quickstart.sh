#!/usr/bin/env bash
# The whole way once: builds pp, draws and compiles examples/quickstart.pipe, and trains it on four ranks on real text.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/build.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
licenses=/usr/share/common-licenses
cat $licenses/*GPL-* $licenses/GFDL-* $licenses/MPL-* > build/text.txt
echo; echo "== pp-compile examples/quickstart.pipe --emit=timeline"
build/bin/pp-compile examples/quickstart.pipe --emit=timeline
echo; echo "== pp-compile examples/quickstart.pipe -o build/quickstart"
build/bin/pp-compile examples/quickstart.pipe -o build/quickstart
echo; echo "== mpirun -n 4 --oversubscribe build/quickstart --data build/text.txt --steps 100"
mpirun -n 4 --oversubscribe build/quickstart --data build/text.txt --steps 100
