"""Asks the compiler's proofs and `pp_schedules.verify` about the same mutants of programs of the whole library."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_verdicts.py PP_COMPILE FOLDER [--mutants N] [--seed N] [--keep 1]
# `pp-fuzz verdicts` changes rank programs, proves them with lanes by each map, and writes them as JSON, proved or not.
# The two verdicts must be the same, or their difference has a name in SCOPE. `--keep 1` keeps others as JSON.
import collections, json, os, re, subprocess, sys
import harness, programs
from bridge_programs import judged

# Programs with what the library's schedules do not have by themselves.
MORE = [("one_f_one_b", {"model": "gpt2"}), ("zb_v", {"model": "gpt2"}), ("chimera", {"model": "gpt2"}),
        ("interleaved_1f1b", {"model": "gpt2"}), ("one_f_one_b", {"model": "encoder_decoder"}),
        ("one_f_one_b", {"recompute": "pre,post"}), ("zb_h1", {"freeze": "embed_tokens,layers.0.,layers.1."}),
        ("helixpipe", {"ship": "false"}), ("megatron", {"layout": "Et*3|t*5||L"})]
# What the checker does not speak of: why a refused mutant may be accepted, or the other way round.
SCOPE = [
    ("bytes", lambda one: not one["claim"] and (one["proof"] == "memory" or one["proof"] == "slots" and re.search(
        "` overlaps `|of an arena of", one["message"]))),  # where values are, and how large they are
    # Which of its own data the last piece reads, where it is the first one, too.
    ("data", lambda one: not one["claim"] and re.search("`data.targets.*where it needs `data.tokens", one["message"])),
    # What is done twice, and what the second time makes nobody reads: the proofs refuse that all the same.
    ("again", lambda one: not one["claim"] and (
        one["mutation"] == "repeat-launch" and re.match("`cut.*after its update", one["message"]) or
        one["mutation"] == "repeat-message" and re.search("which nothing has taken", one["message"]))),
]


def bases(compiler, folder, sizes):
    """The rank programs of every schedule that the checker knows; of others it names what it does not know."""
    with open(harness.TRAIN) as train:
        schedules = re.findall(r'^    "(\w+)".* \w+\(', train.read().split("schedule choose")[1], re.M)
    for schedule, more in [(one, {}) for one in schedules] + MORE:
        for ranks, microbatches in sizes:
            words = programs.options_of(schedule, ranks, microbatches)
            words += [word for key, value in more.items() for word in ("-D", f"{key}={value}")]
            path = os.path.join(folder, f"{schedule}-{'-'.join(more)}-{ranks}-{microbatches}.mlir")
            done = harness.call([compiler, harness.TRAIN, *words, "--emit=ranks", "-o", path], expect=None)
            if done.returncode == 0:
                yield f"{schedule} {more or ''} {ranks} x {microbatches}", path


def mutants(fuzz, path, seed, count):
    """Verdicts of the compiler, and programs."""
    with subprocess.Popen([fuzz, "verdicts", path, str(seed), str(count)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            text = running.stdout.readline()
            if not text.endswith("\n"):             # it crashed at this mutant
                break
            yield json.loads(line), text
        errors = running.stderr.read()
    if running.returncode:
        raise RuntimeError(f"pp-fuzz verdicts {path} ends with {running.returncode}: {errors[-300:]}")


def main():
    arguments, tally = harness.draws(mutants=200, seed=1, keep=0), harness.Tally()
    fuzz = os.path.join(os.path.dirname(arguments.compiler), "pp-fuzz")
    sizes = [(4, 8)] if arguments.mutants < 1000 else [(2, 4), (4, 8)]
    found = list(bases(arguments.compiler, arguments.folder, sizes))
    rows, unknown = collections.defaultdict(collections.Counter), set()
    columns = ["both take", "both refuse", "not written"]
    for number, (name, path) in enumerate(found):
        share = arguments.mutants * (number + 1) // len(found) - arguments.mutants * number // len(found)
        for place, (one, text) in enumerate(mutants(fuzz, path, arguments.seed * 1000 + number, share)):
            if not text.strip():                   # of two channels from one rank to another there is no JSON
                rows[one["mutation"]]["not written"] += 1
                rows["all"]["not written"] += 1
                tally.check(one["mutation"] == "other-channel", f"{name}, mutant {place}: no JSON was written")
                continue
            program = json.loads(text)
            program["time"] = None                 # nothing was simulated
            unproved = judged(program)
            one["claim"], said = getattr(unproved, "claim", None), str(unproved or "good")
            if one["mutation"] == "none" and "is not checked" in said:
                unknown.add(said)
                break
            same = (one["proof"] == "") == (one["claim"] is None)
            column = ("both take" if not one["claim"] else "both refuse") if same else next(
                (why for why, holds in SCOPE if holds(one)), "DIFFER")
            rows[one["mutation"]][column] += 1
            rows["all"][column] += 1
            columns += [column] * (column not in columns)
            if column == "DIFFER" or one["mutation"] == "none" and one["claim"]:
                tally.check(False, f"{name}, mutant {place}, {one['mutation']}: the compiler says "
                            f"{one['proof'] or 'proved'} ({one['message'][:200]}), the checker {said[:300]}")
                if arguments.keep:
                    with open(os.path.join(arguments.folder, f"differs-{number}-{place}.json"), "w") as file:
                        file.write(text)
            else:
                tally.passed += 1
    print(f"{'mutation':18}" + "".join(f"  {column}" for column in columns))
    for mutation, row in sorted(rows.items()):
        print(f"{mutation:18}" + "".join(f"  {row[column]:{len(column)}}" for column in columns))
    print("\n".join(sorted(unknown)))
    tally.check(rows["all"]["both take"] > 20 and rows["all"]["both refuse"] > 60, "mutants are taken and refused")
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
