"""Runs pp-compile's simulator on the text of a program, for the tables of papers."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import json, subprocess, tempfile


def simulate(compiler, text, *flags):
    """What --emit=stats prints, and the error where it does not compile (then the stats are None)."""
    with tempfile.NamedTemporaryFile("w", suffix=".pipe") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([compiler, file.name, "--emit=stats", *flags], capture_output=True, text=True)
    return (None, done.stderr) if done.returncode else (json.loads(done.stdout), "")
