"""Checks the order of the house: small folders, includes that go one way, include guards, lengths, format."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: house.py ROOT
import collections, os, re, shutil, subprocess, sys
from source_files import files, lines, report

CODE = (".cpp", ".h", ".cu", ".c")
# What each room of the compiler may include, beside itself; tools/ may include everything.
COMPILER = {"dialect": (), "frontend": ("dialect",), "analysis": ("dialect",), "passes": ("dialect", "analysis"),
            "report": ("dialect", "analysis"), "lowering": ("dialect", "analysis", "passes", "report")}
ROOMS = {*COMPILER, "tools", "runtime", "test", "bench"}
# The folders of these rooms: each may include those before it, and the headers in the room itself.
INNER = {"runtime": ("files", "transport", "device", "audit", "kernels", "simt", "cpu", "cuda", "trainer", "start"),
         "passes": ("order", "layouts", "derive", "complete", "project", "prove", "plan")}
# What compiler and runtime share, by the rooms that may include it; it includes nothing of either: by what the one
# plans and the kernels of the other run, the names in the texts of formulas, how their kernels are launched, and the
# names in logs.
SHARED = {"runtime/kernels/Facts.h": ("analysis",), "runtime/cpu/Elements.def": ("dialect",),
          "runtime/cuda/FormulaKernel.h": ("analysis", "lowering"), "runtime/trainer/LogFields.h": ("frontend",)}
ENTRIES, COLUMNS, README, CMAKE = 25, 120, 180, 400


def is_cmake(path):
    return path.endswith((".cmake", "CMakeLists.txt"))


def folders(paths):
    """No folder is long, but those of tests, and stdlib/, a shelf that stays flat: programs import `std/1f1b.pipe`."""
    entries = collections.defaultdict(set)
    for path in paths:
        parts = path.split("/")
        for depth in range(len(parts)):
            entries["/".join(parts[:depth])].add(parts[depth])
    for folder, names in entries.items():
        if len(names) > ENTRIES and not re.match(r"(test|stdlib)(/|$)", folder):
            yield f"{folder or 'the root'}: {len(names)} entries, expected at most {ENTRIES}"


def refused(path, included):
    """Why a file may not include another, if so."""
    room, *inner = path.split("/")[:-1]
    other, *others = included.split("/")[:-1]
    if included in SHARED and room in (*SHARED[included], "runtime"):
        return None
    if room in COMPILER and other != room and other not in COMPILER[room]:
        return f"{room}/ may include {', '.join(COMPILER[room]) or 'nothing'} only"
    if room == "runtime" and other != "runtime":
        return "the runtime includes nothing of the compiler"
    if room == "tools" and included not in ("runtime/Version.h",) and other == "runtime":
        return "of the runtime the tools know its version only"
    its = INNER.get(room)
    if its and other == room and inner and others and its.index(others[0]) > its.index(inner[0]):
        return f"{others[0]}/ comes after {inner[0]}/"
    return None


def includes(root, paths):
    for path in paths:
        if path.endswith(CODE):
            for number, line in enumerate(lines(root, path), 1):
                match = re.match(r'\s*#\s*include "((?:\w+/)+\w+\.(?:h|def))"', line)
                why = match and match[1].split("/")[0] in ROOMS and refused(path, match[1])
                if why:
                    yield f"{path}:{number}: includes `{match[1]}`: {why}"


def guards(root, paths):
    """A header's guard begins with its room and ends with its name, and no two headers share one."""
    owners = {}
    for path in paths:
        match = path.endswith(".h") and re.search(r"^#ifndef (\w+)\n#define \1$", "\n".join(lines(root, path)), re.M)
        if match and path.split("/")[0] in ROOMS:
            room, name = path.split("/")[0].upper(), os.path.basename(path)[:-2].upper()
            if not re.fullmatch(rf"PP_{room}_(\w*){name}_H", match[1]):
                yield f"{path}: expected an include guard `PP_{room}_.._{name}_H`, got `{match[1]}`"
            other = owners.setdefault(match[1], path)
            if other != path:
                yield f"{path}: `{other}` has the same include guard, `{match[1]}`"


def lengths(root, paths):
    cmake = 0
    for path in paths:
        if path.endswith((*CODE, ".td", ".def", ".py", ".sh")) or is_cmake(path):
            text = lines(root, path)
            cmake += len(text) if is_cmake(path) else 0
            for number, line in enumerate(text, 1):
                if len(line) > COLUMNS:
                    yield f"{path}:{number}: {len(line)} columns, expected at most {COLUMNS}"
                if is_cmake(path) and re.search(r"\bGLOB(_RECURSE)?\b|\bif\(.*\bEXISTS\b", line):
                    yield f"{path}:{number}: folders list their files; expected no GLOB and no EXISTS"
    if cmake > CMAKE:
        yield f"all CMake together has {cmake} lines, expected at most {CMAKE}"
    if "README.md" in paths and len(lines(root, "README.md")) > README:
        yield f"README.md has {len(lines(root, 'README.md'))} lines, expected at most {README}"


def formatted(root, paths):
    """What clang-format would change, where there is one."""
    tool = shutil.which("clang-format-19")
    sources = [os.path.join(root, path) for path in paths if path.endswith(CODE)]
    if tool and sources:
        style = "--style=file:" + os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../.clang-format")
        said = subprocess.run([tool, "--dry-run", style, *sources], capture_output=True, text=True).stderr
        for path, line in re.findall(r"^(.*?):(\d+):.*code should be clang-formatted", said, re.M):
            yield f"{os.path.relpath(path, root)}:{line}: clang-format would change this"


def main():
    root = sys.argv[1]
    paths = list(files(root))
    return report([*folders(paths), *includes(root, paths), *guards(root, paths), *lengths(root, paths),
                   *formatted(root, paths)])


if __name__ == "__main__":
    sys.exit(main())
