#!/usr/bin/env python3
"""Runs programs under Slurm, a cluster of this one machine: srun, pp-run around it, and the job of docs/cluster.md."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: slurm.py PP_COMPILE FOLDER
# Needs munged, slurmctld, slurmd and srun (Debian: munge, slurmctld, slurmd, slurm-client), and root. They run from
# files in FOLDER alone, with ports of their own, and are ended behind the test.
import os, re, shutil, signal, socket, subprocess, sys, time
import harness

SIZES = dict(schedule="1f1b", ranks=4, microbatches=4, model="llama", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48,
             vocab=256, sequence=32, microbatch=1)
STEPS = 60
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
CONF = """ClusterName=pp
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        for name in ("state", "spool"):
            os.mkdir(os.path.join(folder, name))
        os.chmod(folder, 0o755)
        with open(os.path.join(folder, "munge.key"), "wb", opener=lambda *of: os.open(*of, 0o400)) as key:
            key.write(os.urandom(128))
        conf = os.path.join(folder, "slurm.conf")
        with open(conf, "w") as file:
            file.write(CONF.format(host=os.uname().nodename, folder=folder, ports=free_ports(2)))
        harness.ENVIRONMENT["SLURM_CONF"] = conf
        at = lambda name: os.path.join(folder, "munge." + name)
        harness.call(["munged", "--force", "--key-file", at("key"), "--socket", at("socket"), "--pid-file", at("pid"),
                      "--log-file", at("log"), "--seed-file", at("seed")])
        harness.call(["slurmctld", "-f", conf])
        harness.call(["slurmd", "-f", conf])

    def is_ready(self):
        for _ in range(40):
            said = harness.call(["sinfo", "-h", "-o", "%t"], expect=None).stdout.strip()
            if said in ("idle", "mix", "alloc"):
                return True
            time.sleep(0.5)
        return False

    def end(self):
        for name in ("slurmd", "slurmctld", "munge"):
            try:
                with open(os.path.join(self.folder, name + ".pid")) as file:
                    os.kill(int(file.read()), signal.SIGTERM)
            except (OSError, ValueError):
                pass


def ranks_of(program):
    """The processes of a program, by its path."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/exe") == program:
                found.append(int(name))
        except OSError:
            pass
    return found


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Judge:
    def __init__(self, compiler, folder):
        self.tally, self.tools = harness.Tally(), os.path.dirname(compiler)
        self.text = harness.write_text(folder)
        self.program = harness.compile_train(compiler, os.path.join(folder, "zb_v"), SIZES)
        harness.call([*harness.launch(self.program, 4, "mpi"), *self.words("whole")])

    def words(self, save, *more, steps=STEPS):
        return ["--data", self.text, "--steps", str(steps), "--save", save, *more]

    def same(self, save, what, log=""):
        equal = os.path.exists(f"{save}/model.safetensors") and all(
            read(f"{save}/{name}.safetensors") == read(f"whole/{name}.safetensors") for name in ("model", "optimizer"))
        self.tally.check(equal, f"{what}: the weights of the run under mpirun {'' if equal else log[-600:]}")

    def srun(self):
        done = harness.call(["srun", "-n", "4", "--mpi=pmix", self.program, *self.words("alone")], expect=None)
        self.same("alone", f"srun --mpi=pmix, code {done.returncode}", done.stderr)

    def restarts(self):
        """A rank of a run under srun is killed."""
        run = subprocess.Popen([sys.executable, os.path.join(self.tools, "pp-run"), "-n", "4", "--srun",
                                "--launch-with=--mpi=pmix", self.program,
                                *self.words("broken", "--save-every", "5", "--timeout", "20")],
                               env=harness.ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end, killed = time.time() + 60, False
        while not killed and run.poll() is None and time.time() < end:
            time.sleep(0.02)
            if os.path.exists("broken/state.json"):
                for process in ranks_of(self.program)[:1]:
                    os.kill(process, signal.SIGKILL)
                    killed = True
        errors = run.communicate(timeout=120)[1]
        self.tally.check(killed and run.returncode == 0 and "it starts again from step" in errors,
                         f"pp-run --srun starts again: {run.returncode} {errors[-300:]}")
        self.same("broken", "a run that was killed under srun", errors)

    def told(self):
        """The signal that a job asks for before its end: all ranks get it, and the checkpoint is written."""
        run = subprocess.Popen([sys.executable, os.path.join(self.tools, "pp-run"), "-n", "4", "--srun",
                                "--launch-with=--mpi=pmix --job-name=told", self.program,
                                *self.words("told", steps=1000000)],
                               env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while (line := run.stdout.readline()) and not line.startswith("step"):
            pass
        harness.call(["scancel", "--signal=USR1", "--name=told"], expect=None)
        output, errors = run.communicate(timeout=60)
        self.tally.check(run.returncode == 5 and "told to end" in output and os.path.exists("told/state.json") and
                         "starts again" not in errors, f"SIGUSR1 by Slurm: {run.returncode} {errors[-300:]}")

    def job(self):
        """The job of the page, with the sizes of this machine."""
        with open(os.path.join(harness.ROOT, "docs/cluster.md")) as page:
            script = re.search(r"^```sh slurm\n(.*?)^```", page.read(), re.M | re.S)[1]
        for old, new in (("--steps 10000", f"--steps {STEPS}"), ("--save-every 500", "--save-every 20"),
                         ("text.txt", self.text), (" checkpoint", " job")):
            self.tally.check(old in script, f"the job has `{old.strip()}`")
            script = script.replace(old, new)
        with open("job.sh", "w") as file:
            file.write(script)
        harness.ENVIRONMENT["PATH"] = self.tools + ":" + harness.ENVIRONMENT["PATH"]
        done = harness.call(["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=1",
                             "--output=job.log", "job.sh"], expect=None)
        log = read("job.log").decode(errors="replace") if os.path.exists("job.log") else done.stderr
        self.same("job", f"sbatch, code {done.returncode}", log)


def main():
    compiler, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    lacking = [name for name in NEEDED if not shutil.which(name)] or (os.geteuid() != 0 and ["root"])
    if lacking:
        print(f"skipped: {', '.join(lacking)} is not here")
        return 77
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    os.chdir(folder)
    cluster = Cluster(folder)
    try:
        if not cluster.is_ready():
            print("skipped: Slurm does not start here")
            return 77
        judge = Judge(compiler, folder)
        judge.srun()
        judge.restarts()
        judge.told()
        judge.job()
        return judge.tally.close()
    finally:
        cluster.end()


if __name__ == "__main__":
    sys.exit(main())
