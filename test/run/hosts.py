#!/usr/bin/env python3
"""Runs meshes over two hosts, network namespaces with a wire between them: losses as on one host, and its warning."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: hosts.py PP_COMPILE FOLDER
# Ends with 77, which ctest calls skipped, where this machine lets us make no such namespaces.
import os, re, subprocess, sys
import harness

SIZES = dict(layers=4, hidden=32, heads=4, ffn=48, vocab=256, sequence=32, microbatch=1, microbatches=4,
             precision="f64", schedule="1f1b")
WIRE = "10.77.0.0/24"
TWO_HOSTS = os.path.join(harness.ROOT, "test", "run", "Inputs", "two_hosts.sh")
# The mesh, the pipeline's ranks, how many devices each host has, and whether a line of `tensor` is on both.
CASES = ((dict(tensor=2), 2, (2, 2), False), (dict(tensor=2), 2, (1, 3), True),
         (dict(tensor=2, context=2, zero=1), 1, (2, 2), False), (dict(data=3, zero=2), 2, (3, 3), False),
         (dict(tensor=2, order="pipeline tensor context data"), 2, (2, 2), True))


def losses(text):
    return re.findall(r"^step +\d+/\d+  loss (\S+)  grad norm (\S+)", text, flags=re.M)


def main():
    compiler, folder = (os.path.abspath(path) for path in sys.argv[1:])
    os.makedirs(folder, exist_ok=True)
    hosts = ["unshare", "--net", "--uts", TWO_HOSTS, folder]
    tried = subprocess.run([*hosts, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"skipped: no network namespaces here: {tried.stderr.strip()}")
        return 77
    tally = harness.Tally()
    for mesh, ranks, places, warns in CASES:
        program = harness.compile_train(compiler, os.path.join(folder, "program"),
                                        SIZES | dict(ranks=ranks) | {f"mesh.{key}": its for key, its in mesh.items()})
        run = [program, "--data", "random", "--steps", "3"]
        alone = losses(harness.call([*run, "--in-process"]).stdout)
        # Between the hosts by TCP over the wire alone; `lo` of each host is its own.
        network = ["--mca", "plm_rsh_agent", os.path.join(folder, "agent.sh"), "--mca", "btl", "tcp,self",
                   "--mca", "btl_tcp_if_include", WIRE, "--mca", "oob_tcp_if_include", WIRE]
        listed = ",".join(f"10.77.0.{number}:{count}" for number, count in enumerate(places, 1))
        done = harness.call([*hosts, "mpirun", "-n", str(sum(places)), "--host", listed, *network, *run], timeout=120)
        what = f"{mesh}, {ranks} ranks, {places} devices on the hosts"
        tally.check(len(alone) == 3 and losses(done.stdout) == alone, f"{what}: losses and norms of one process")
        warned = "are on different machines, and exchange values inside every unit" in done.stderr
        tally.check(warned == warns, f"{what}: {'a' if warns else 'no'} warning of `tensor`")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
