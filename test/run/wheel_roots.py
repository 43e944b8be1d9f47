#!/usr/bin/env python3
"""Tries a wheel in other systems: a root folder, as debootstrap makes it, gets an empty environment and the wheel."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: wheel_roots.py WHEEL ROOT..      as root, by hand; a ROOT needs python3 with venv, and nothing of a compiler:
#   debootstrap --variant=minbase --include=python3,python3-venv bullseye ROOT
import os, shutil, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
ASKED = """import os, sys, pp_schedules as pp
s = pp.Schedule("/tmp/pp-wheel/mine.pipe", ranks=4, microbatches=8, layers=4)
print(s.prove("all"))
assert s._repr_svg_().startswith("<svg") and 0 < s.stats()["bubble"] < 1
print(s.program().verify()["units"], "units; Python", sys.version.split()[0], "with", os.confstr("CS_GNU_LIBC_VERSION"))
assert "torch" not in sys.modules
"""
PARAMETERS = "-D ranks=4 -D microbatches=8 -D layers=4"
SCRIPT = f"""set -e
for tool in cc g++ clang mpirun mlir-opt; do if command -v $tool; then echo "this root has $tool"; fi; done
cd /tmp/pp-wheel
python3 -m venv env
env/bin/pip install -q --no-index --disable-pip-version-check *.whl
PATH=$PWD/env/bin:$PATH
pp --version
pp draw mine.pipe {PARAMETERS} --columns=0
pp prove mine.pipe {PARAMETERS} | head -n 4
pp json mine.pipe {PARAMETERS} -o mine.json
pp verify mine.json
python ask.py
"""


def tried(wheel, root):
    """The exit code of the script in the root."""
    folder = os.path.join(root, "tmp", "pp-wheel")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    shutil.copy(wheel, folder)
    shutil.copy(os.path.join(HERE, "..", "..", "stdlib", "1f1b.pipe"), os.path.join(folder, "mine.pipe"))
    with open(os.path.join(folder, "ask.py"), "w") as file:
        file.write(ASKED)
    try:
        return subprocess.run(["chroot", root, "sh", "-c", SCRIPT], timeout=300, stdin=subprocess.DEVNULL,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}).returncode
    finally:
        shutil.rmtree(folder)


def main():
    wheel, *roots = sys.argv[1:] or [None]
    if not roots:
        sys.exit("usage: wheel_roots.py WHEEL ROOT..")
    failed = 0
    for root in roots:
        print(f"--- {root}", flush=True)
        failed += tried(wheel, root) != 0
    print(f"{len(roots) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
