#!/usr/bin/env python3
"""Stops and kills ranks at any moment of a run over MPI: nothing hangs above its timeout, the right one is named."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: stops.py PP_COMPILE FOLDER [--cases N] [--seed N] [--signals stop,kill]
# A record: each case with its signal, moment, what was said and how long it took; at the end the counts.
import os, random, signal, subprocess, sys, time
import harness

SIZES = dict(schedule="1f1b", ranks=4, microbatches=4, model="llama", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48,
             vocab=256, sequence=32, microbatch=1)
TIMEOUT, SPARE = 2.0, 30.0  # a loaded machine may need ten times as long: what hangs does so for ever
# A library that stops one rank at a place behind its last step.
STOPPER = r"""
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
static void at(const char *place) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("STOPPED");
  if (rank && wanted && !strcmp(wanted, rank) && !strcmp(getenv("STOPPED_AT"), place))
    raise(SIGSTOP);
}
int MPI_Finalize(void) {
  at("before the end of MPI");
  int code = PMPI_Finalize();
  at("behind the end of MPI");
  return code;
}
int MPI_Win_free(MPI_Win *window) {
  at("between both");
  return PMPI_Win_free(window);
}
"""


def have_ended(processes):
    """Whether all ranks are gone, or wait for mpirun to see that they are."""
    for process in processes:
        try:
            with open(f"/proc/{process}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                    return False
        except OSError:
            continue
    return True


def end(run, processes):
    run.kill()
    for process in processes.values():
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run.communicate()


def attempt(program, text, name, moment, number, steps):
    """One run: how long it lived after the signal, its exit status and what it said; nothing if it ended before."""
    command = [*harness.launch(program, SIZES["ranks"], "mpi"), "--data", text, "--steps", str(steps), "--timeout",
               str(TIMEOUT)]
    run = subprocess.Popen(command, env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(moment)
    processes = harness.ranks_of(run.pid)
    if number not in processes:
        end(run, processes)
        return None
    try:
        os.kill(processes[number], signal.SIGSTOP if name == "stop" else signal.SIGKILL)
    except ProcessLookupError:
        end(run, processes)
        return None
    began = time.time()
    try:
        output, errors = run.communicate(timeout=TIMEOUT + SPARE)
    except subprocess.TimeoutExpired:
        ended = have_ended(processes.values())
        end(run, processes)
        return time.time() - began, "mpirun" if ended else None, ""
    return time.time() - began, run.returncode, [line for line in errors.splitlines() if "pp: error" in line]


def behind(options, program, text, tally):
    """A rank is stopped behind its last step, where others have nothing to wait for any more."""
    source, library = (os.path.join(options.folder, name) for name in ("stopper.c", "stopper.so"))
    with open(source, "w") as file:
        file.write(STOPPER)
    harness.call(["mpicc", "-shared", "-fPIC", source, "-o", library])
    for number, place in enumerate(("between both", "before the end of MPI", "behind the end of MPI")):
        command = ["mpirun", "-n", "4", "--oversubscribe", "-x", "LD_PRELOAD=" + library, "-x", f"STOPPED={number}",
                   "-x", "STOPPED_AT=" + place, program, "--data", text, "--steps", "2", "--timeout", str(TIMEOUT)]
        run = subprocess.Popen(command, env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        began = time.time()
        try:
            errors = run.communicate(timeout=4 * (TIMEOUT + SPARE))[1]
        except subprocess.TimeoutExpired:
            end(run, harness.ranks_of(run.pid))
            errors = "hangs"
        said = [line for line in errors.splitlines() if f"rank {number} (process" in line and "stopped" in line]
        tally.check(len(said) == 1 and run.returncode, f"rank {number} stopped {place}: {run.returncode}, "
                    f"{time.time() - began:.1f} s: {said or errors[-300:]}")


def main():
    options = harness.draws(cases=6, seed=1, signals="stop,kill")
    text, draw = harness.write_text(options.folder), random.Random(options.seed)
    program = harness.compile_train(options.compiler, os.path.join(options.folder, "stopped"), SIZES)
    start = time.time()
    harness.call([*harness.launch(program, SIZES["ranks"], "mpi"), "--data", text, "--steps", "20"])
    whole = time.time() - start
    counts, tally = {}, harness.Tally()
    behind(options, program, text, tally)
    print(f"seed {options.seed}, a run takes {whole:.2f} s, timeout {TIMEOUT:.0f} s")
    for case in range(options.cases):
        names = options.signals.split(",")
        name, number = names[case % len(names)], draw.randrange(SIZES["ranks"])
        # Each kind has a third of the moments: in the first half of a short run, anywhere in it, in the steps of a long
        # run.
        kind = case // 2 % 3
        moment = draw.uniform(0.05, (whole / 2, whole, whole + 1)[kind])
        result = attempt(program, text, name, moment, number, (20, 20, 1000000)[kind])
        if not result:
            counts["over before"] = counts.get("over before", 0) + 1
            continue
        took, code, said = result
        named = any(f"rank {number} (process" in line for line in said or ())
        # Open MPI 4.1's own mpirun may hang in PMIx_server_finalize, behind ranks that have all ended.
        result = ("hangs" if code is None else "mpirun hangs" if code == "mpirun" else "named" if named
                  else "said" if said else "ended" if code else "done")
        counts[result] = counts.get(result, 0) + 1
        tally.check(code is not None, f"{name} of rank {number} after {moment:.2f} s: {result}, {took:.1f} s, {code}: "
                    f"{said[0] if said else ''}")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return tally.close() if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
