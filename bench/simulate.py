"""Runs pp-compile's simulator on the text of a program, for the tables of papers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, subprocess, tempfile


def compile_text(compiler, text, form, *flags, suffix=".pipe"):
    """What --emit=FORM prints, and the error where it does not compile (then the first is None)."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
        file.write(text)
        file.flush()
        done = subprocess.run([compiler, file.name, f"--emit={form}", *flags], capture_output=True, text=True)
    return (None, done.stderr) if done.returncode else (done.stdout, "")


def simulate(compiler, text, *flags):
    """What --emit=stats prints, and the error where it does not compile (then the stats are None)."""
    out, error = compile_text(compiler, text, "stats", *flags)
    return (None, error) if out is None else (json.loads(out), "")


def cluster_in(ranks):
    """Where in rank programs, as --emit=ranks prints them, the figures of their cluster stand: the simulator reads them
    there."""
    begin = ranks.index("cluster = {") + len("cluster = ")
    depth = 0
    for end in range(begin, len(ranks)):
        depth += {"{": 1, "}": -1}.get(ranks[end], 0)
        if depth == 0:
            return begin, end + 1
    raise ValueError("braces of the cluster do not close")
