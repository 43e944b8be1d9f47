#!/usr/bin/env python3
"""Runs meshes over two hosts with a wire between them, and cuts the wire: mpirun ends, pp-run goes on with one host."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: hosts.py PP_COMPILE FOLDER [--cuts N]
# The hosts are network namespaces. Ends with 77, which ctest calls skipped, where this machine lets us make none.
import json, os, random, re, shlex, shutil, subprocess, sys, time
import harness

SIZES = dict(layers=4, hidden=32, heads=4, ffn=48, vocab=256, sequence=32, microbatch=1, microbatches=4,
             precision="f64", schedule="1f1b")
WIRE = "10.77.0.0/24"
# Between the hosts by TCP over the wire alone; `lo` of each host is its own.
OVER_WIRE = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", WIRE, "--mca", "oob_tcp_if_include", WIRE]
KEEPALIVE = "time 1", "intvl 1", "probes 1"  # seconds, as docs/cluster.md has them; all of it below --timeout
TIMEOUT, SPARE = 4, 5
TWO_HOSTS = os.path.join(harness.ROOT, "test", "run", "Inputs", "two_hosts.sh")
# The mesh, the pipeline's ranks, how many devices each host has, and whether a line of `tensor` is on both.
CASES = ((dict(tensor=2), 2, (2, 2), False), (dict(tensor=2), 2, (1, 3), True),
         (dict(tensor=2, context=2, zero=1), 1, (2, 2), False), (dict(data=3, zero=2), 2, (3, 3), False),
         (dict(tensor=2, order="pipeline tensor context data"), 2, (2, 2), True))


def losses(text):
    return re.findall(r"^step +\d+/\d+  loss (\S+)  grad norm (\S+)", text, flags=re.M)


def until_cut(folder, command, cut):
    """Runs a command on two hosts, the second of which is cut off when `cut` returns: its code, what it says, and how
    long after that it ends."""
    script = os.path.join(folder, "cut.sh")
    with open(script, "w") as file:
        file.write(f"#!/bin/bash\n{shlex.join(command)} & run=$!\n"
                   f"read -r < {folder}/cut\n{folder}/agent.sh second ip link set pp-wire-b down\nwait $run\n")
    os.chmod(script, 0o755)
    if not os.path.exists(os.path.join(folder, "cut")):
        os.mkfifo(os.path.join(folder, "cut"))
    run = subprocess.Popen(["unshare", "--net", "--uts", TWO_HOSTS, folder, script], env=harness.ENVIRONMENT, text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    cut()
    with open(os.path.join(folder, "cut"), "w") as file:
        file.write("now\n")
    begin = time.monotonic()
    try:
        said = run.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        run.kill()
        return -1, "it hangs", 120
    return run.returncode, said, time.monotonic() - begin


def cuts(compiler, folder, tally, number):
    """The wire is cut at any moment of a run: mpirun ends, and no rank is left."""
    program = harness.compile_train(compiler, os.path.join(folder, "cut4"), SIZES | dict(ranks=4))
    draw = random.Random(number)
    keepalive = [word for each in KEEPALIVE for word in ("--mca", *("oob_tcp_keepalive_" + each).split())]
    for case in range(number):
        moment = 1.5 + 2 * draw.random()
        command = ["mpirun", "-n", "4", "--host", "10.77.0.1:2,10.77.0.2:2", "--mca", "plm_rsh_agent",
                   os.path.join(folder, "agent.sh"), *OVER_WIRE, *keepalive, program, "--data", "random", "--steps",
                   "1000000", "--timeout", str(TIMEOUT)]
        code, said, seconds = until_cut(folder, command, lambda: time.sleep(moment))
        end = time.monotonic() + TIMEOUT + SPARE - seconds  # those beyond the cut notice it by themselves
        while (left := subprocess.run(["pgrep", "-f", program], capture_output=True, text=True).stdout.split()) and (
                time.monotonic() < end):
            time.sleep(0.1)
        tally.check(code > 0 and seconds < TIMEOUT + SPARE and not left,
                    f"cut {case} after {moment:.1f} s: code {code}, {seconds:.1f} s later, {len(left)} processes left"
                    + ("" if 0 < code and seconds < TIMEOUT + SPARE else said[-400:]))


def goes_on(compiler, folder, tally):
    """pp-run finds one of two hosts cut off, and goes on from the checkpoint with the program for two ranks."""
    program, saved = os.path.join(folder, "goes"), os.path.join(folder, "saved")
    shutil.rmtree(saved, ignore_errors=True)
    harness.compile_train(compiler, program, SIZES | dict(ranks=4), options=("--also", "ranks=2"))
    with open(os.path.join(folder, "hosts"), "w") as file:
        file.write("localhost slots=2\n10.77.0.2 slots=2\n")
    agent = os.path.join(folder, "ssh.sh")  # two_hosts.sh writes one that needs no wire
    with open(agent, "w") as file:
        file.write(f'#!/bin/bash\nip link show pp-wire-a | grep -q "state UP" && exec {folder}/agent.sh "$@"\n')
    os.chmod(agent, 0o755)

    def wait_for_save():
        for _ in range(300):
            if os.path.exists(os.path.join(saved, "state.json")):
                break
            time.sleep(0.1)
        time.sleep(0.3)

    run = os.path.join(os.path.dirname(compiler), "pp-run")
    steps = 800
    command = [run, "-n", "4", "--hosts", os.path.join(folder, "hosts"), "--agent", agent,
               "--launch-with", shlex.join(OVER_WIRE), program, "--data", "random", "--steps", str(steps), "--save",
               saved, "--save-every", "50", "--keep", "2", "--timeout", str(TIMEOUT)]
    code, said, seconds = until_cut(folder, command, wait_for_save)
    told = re.search(r"starts again from step (\d+)", said)
    with open(os.path.join(saved, "state.json")) as file:
        step = json.load(file)["step"]
    fewer = "`10.77.0.2` does not answer" in said and "2 of 4 processes have a host" in said
    tally.check(code == 0 and step == steps and told and 0 < int(told[1]) < steps and fewer,
                f"pp-run goes on from step {told and told[1]} with one host: code {code}, step {step}, {seconds:.0f} s"
                + ("" if code == 0 else said[-600:]))


def main():
    options = harness.draws(cuts=1)
    compiler, folder = os.path.abspath(options.compiler), os.path.abspath(options.folder)
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
        network = ["--mca", "plm_rsh_agent", os.path.join(folder, "agent.sh"), *OVER_WIRE]
        listed = ",".join(f"10.77.0.{number}:{count}" for number, count in enumerate(places, 1))
        done = harness.call([*hosts, "mpirun", "-n", str(sum(places)), "--host", listed, *network, *run], timeout=120)
        what = f"{mesh}, {ranks} ranks, {places} devices on the hosts"
        tally.check(len(alone) == 3 and losses(done.stdout) == alone, f"{what}: losses and norms of one process")
        warned = "are on different machines, and exchange values inside every unit" in done.stderr
        tally.check(warned == warns, f"{what}: {'a' if warns else 'no'} warning of `tensor`")
    cuts(compiler, folder, tally, options.cuts)
    goes_on(compiler, folder, tally)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
