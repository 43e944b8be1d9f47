"""Changes programs of the library at random, and judges what `pp_schedules.verify` says of each by execution."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bridge_checker.py PP_COMPILE FOLDER [--mutants N] [--seed N]
# A mutant that the checker accepts must run on numbers to the weights of one process, with lanes by each of five maps.
# A mutant that does not run so must be refused. The executor shares no code with the checker.
import collections, copy, json, os, random, sys, time
from bridge_numbers import Wrong, dead, harmless
from bridge_programs import CASES, CUT, PARTS, TIED, judged, program_of
from harness import TRAIN, call, draws
import pp_schedules

CLAIMS = {"form", "units", "values", "gradients", "channels", "progress", "lives", "counts"}


def ranked(draw, program, word=None):
    """A list of actions, and the places in it, of one rank that has some."""
    while True:
        rank = draw.choice(program["programs"])
        places = [i for i, action in enumerate(rank["actions"]) if word in (None, action[0])]
        if len(places) > 1:
            return rank, rank["actions"], places


def swap(actions, i, j):
    actions[i], actions[j] = actions[j], actions[i]


def neighbours(draw, program):
    _, actions, places = ranked(draw, program)
    i = draw.choice(places[:-1])
    swap(actions, i, i + 1)


def posts(draw, program):
    _, actions, places = ranked(draw, program, "post")
    i = draw.randrange(len(places) - 1)
    swap(actions, places[i], places[i + 1])


def drops(word):
    def drop(draw, program):
        _, actions, places = ranked(draw, program, word)
        del actions[draw.choice(places)]
    return drop


def doubles(draw, program):
    _, actions, places = ranked(draw, program)
    i = draw.choice(places)
    actions.insert(i, copy.deepcopy(actions[i]))


def values(draw, program):
    """One value that is read, made, sent or received is another one of its role."""
    rank, actions, places = ranked(draw, program)
    uses = [(a[3:4], a, 3) if a[0] == "post" else (part, part, i) for a in actions if a[0] != "wait"
            for part in ([a] if a[0] == "post" else a[5:7]) for i in range(1 if a[0] == "post" else len(part))]
    _, where, i = draw.choice(uses)
    role = rank["values"][where[i]]["role"]
    where[i] = draw.choice([v for v, value in enumerate(rank["values"]) if value["role"] == role])


def microbatches(draw, program):
    _, actions, places = ranked(draw, program, "run")
    i, j = draw.sample(places, 2)
    which = draw.choice([4, 9]) if program["slices"] else 4
    actions[i][which], actions[j][which] = actions[j][which], actions[i][which]


def pieces(draw, program):
    _, actions, places = ranked(draw, program, "run")
    actions[draw.choice(places)][3] = draw.randrange(len(program["pieces"]))


def messages(draw, program):
    _, actions, places = ranked(draw, program, draw.choice(["post", "wait"]))
    i, j = draw.sample(places, 2)
    actions[i][1], actions[j][1] = actions[j][1], actions[i][1]


def variants(draw, program):
    _, actions, places = ranked(draw, program, "run")
    actions[draw.choice(places)][2] = draw.choice(["first", "plain", "norm", "norm_first", "light", "sum"])


def phases(draw, program):
    _, actions, places = ranked(draw, program, "run")
    actions[draw.choice(places)][1] = draw.choice("FBIWRU")


def deaths(draw, program):
    """A value is said to be dead earlier, later, twice or never."""
    _, actions, places = ranked(draw, program)
    i = draw.choice([i for i in places if dead(actions[i])])
    value = draw.choice(dead(actions[i]))
    if draw.random() < 0.7:
        dead(actions[i]).remove(value)
    if draw.random() < 0.8:
        dead(actions[max(0, min(len(actions) - 1, i + draw.choice([-3, -2, -1, 1, 2])))]).append(value)


def stated(draw, program):
    counts = draw.choice(program["counts"])
    counts[draw.choice(sorted(counts))] += draw.choice([-1, 1])


KINDS = [neighbours, posts, drops("run"), drops("post"), drops("wait"), doubles, values, microbatches, pieces, messages,
         variants, phases, deaths, stated]


def runs(program, accepted):
    try:
        for which in pp_schedules.MAPS if accepted else ("edge",):
            harmless(program, which)
    except Wrong as wrong:
        return str(wrong)
    return None


def of_models(arguments, draw):
    """Programs of models, which no module runs: states of scans that go on from slice to slice, and a head that has no
    weights but those of the embedding. They are proved; one that reads another state, or its gradient, is refused."""
    common = {"ranks": 2, "microbatches": 4, "layers": 4, "heads": 4, "hidden": 32, "sequence": 24}
    for model, schedule, more in (("mamba", "terapipe", {"slices": 3}), ("delta", "slimpipe", {"slices": 2}),
                                  ("lfm2", "slimpipe", {"slices": 2, "vocabulary": "true"}),
                                  ("gpt2", "1f1b_vocabulary", {})):
        path, name = os.path.join(arguments.folder, "model.json"), f"{model} by {schedule}"
        sizes = {**common, **more, "model": model, "schedule": schedule}
        defines = [word for key, value in sizes.items() for word in ("-D", f"{key}={value}")]
        call([arguments.compiler, TRAIN, *defines, "--emit=json", "-o", path])
        with open(path) as file:
            program = json.load(file)
        refused = judged(program)
        yield f"{name}: {refused}" if refused or ("states" in program["needs"]) != (model != "gpt2") else None
        for rank in program["programs"]:
            states = [v for v, value in enumerate(rank["values"]) if value["role"] in ("state", "dstate")]
            places = [(a[5], i) for a in rank["actions"] if a[0] == "run" for i, v in enumerate(a[5]) if v in states]
            for reads, i in draw.sample(places, min(3, len(places))):
                right, reads[i] = reads[i], draw.choice([v for v in states if v != reads[i]])
                other = rank["values"][reads[i]]["label"]
                yield None if judged(program) else f"{name}: accepted with {other} in place of another state"
                reads[i] = right


def main():
    arguments = draws(mutants=420, seed=1)
    cases = [(name, False) for name in [*CASES, *PARTS, *CUT]] + [(name, True) for name in TIED]
    programs, failed = {}, 0
    for name, tied in cases:
        program = program_of(arguments.compiler, arguments.folder, name, 4, 8, tied)
        programs[name, tied], wrong = program, judged(program) or runs(program, True)
        program["time"] = None                     # that of a mutant would be another one
        if wrong:
            failed += 1
            print(f"{name}, tied {tied}: {wrong}")
    draw, said, slow = random.Random(arguments.seed), collections.Counter(), collections.Counter()
    for number in range(arguments.mutants):
        case, kind = draw.choice(cases), KINDS[number % len(KINDS)]
        mutant = copy.deepcopy(programs[case])
        kind(draw, mutant)
        same = mutant == programs[case]
        claim = getattr(judged(mutant), "claim", None)
        wrong = None if kind in (deaths, stated) and claim else runs(mutant, claim is None)
        said[claim] += not same
        slow["harmless, and refused"] += claim is not None and wrong is None
        if claim is None and wrong or kind is stated and not claim or claim not in (CLAIMS | {None}):
            failed += 1
            print(f"mutant {number} of {case} ({kind.__qualname__}): the checker says {claim}, execution says {wrong}")
    wrongs = list(of_models(arguments, draw))
    failed += len([print(wrong) for wrong in wrongs if wrong])
    large = program_of(arguments.compiler, arguments.folder, "1f1b", 8, 400)
    start = time.process_time()
    facts = pp_schedules.verify(large)
    took, units = time.process_time() - start, facts["units"] + facts["forward units"]
    print(f"{units} units in {took:.2f} s of CPU time; claims that mutants break: {dict(said)}; {dict(slow)}")
    if took > 4:                                   # 1.1 s on two cores that others use, too
        failed += 1
        print(f"the checker takes {took:.1f} s for {units} units")
    missing = CLAIMS - {"form"} - set(said)
    passed = len(cases) + len(wrongs) + arguments.mutants - failed - len(missing)
    print(f"{passed} passed, {failed + len(missing)} failed" + (f": no mutant breaks {missing}" if missing else ""))
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
