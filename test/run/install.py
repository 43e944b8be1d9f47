#!/usr/bin/env python3
"""Judges what is installed: a copy that was moved elsewhere compiles and trains without the sources and the build."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: install.py PP_COMPILE FOLDER CMAKE
import os, re, shlex, shutil, subprocess, sys, tempfile
import harness

compiler, folder, cmake = sys.argv[1:]
build = os.path.dirname(os.path.dirname(os.path.abspath(compiler)))
tally = harness.Tally()
home = tempfile.mkdtemp(prefix="pp-install") # neither below the sources nor below the build


def mentions(path, word):
    with open(path, "rb") as file:
        return word.encode() in file.read()


def hidden(command):
    """With the folders of sources and build covered by empty ones, where this machine lets us; else None."""
    cover = " && ".join(f"mount -t tmpfs none {shlex.quote(path)}" for path in {build, harness.ROOT})
    for flags in (["-m"], ["-r", "-m"]):
        if subprocess.run(["unshare", *flags, "sh", "-c", cover], capture_output=True).returncode == 0:
            return ["unshare", *flags, "sh", "-c", f"{cover} && {command}"]
    return None


def main():
    first, moved = os.path.join(home, "first"), os.path.join(home, "moved")
    harness.call([cmake, "--install", build, "--prefix", first])
    os.rename(first, moved)
    files = [os.path.join(place, name) for place, _, names in os.walk(moved) for name in names]
    with open(os.path.join(build, "CMakeCache.txt")) as cache: # with what debuggers read, sources are named
        release = "CMAKE_BUILD_TYPE:STRING=Release" in cache.read()
    named = [path for path in files for word in (build, harness.ROOT, first) if mentions(path, word)]
    tally.check(not named or not release, f"{len(files)} installed files name neither sources nor build: {named}")
    for name in ("bin/pp", "bin/pp-compile", "bin/pp-translate", "bin/pp-tokenize", "bin/pp-run",
                 "bin/pp-check-hf", "lib/pp/libpp-runtime.a",
                 "share/pp/stdlib/1f1b.pipe", "share/man/man1/pp-compile.1", "share/man/man1/pp-run.1",
                 "share/pp/examples/quickstart.pipe", "share/doc/pp-compiler/LANGUAGE.md",
                 "share/doc/pp-compiler/README.md", "share/doc/pp-compiler/tutorial.md",
                 "share/doc/pp-compiler/OPTIONS.md",
                 "share/bash-completion/completions/pp-compile"):
        tally.check(os.path.getsize(os.path.join(moved, name)) > 0, name)
    tally.check(not [path for path in files if "pp-opt" in path or "fuzz" in path], "no tool for tests alone")

    program = os.path.join(home, "quickstart")
    source = os.path.join(moved, "share/pp/examples/quickstart.pipe")
    steps = [f"cd / && {moved}/bin/pp-compile {source} -o {program}", f"{program} --in-process --data random --steps 2",
             f"{moved}/bin/pp-compile --version"]
    script = " && ".join(steps)
    command = hidden(script)
    done = harness.call(command or ["sh", "-c", script], expect=None)
    tally.check(done.returncode == 0
                and re.search(r"step 2/2  loss [0-9.]+", re.sub(" +(?=[0-9]+/)", " ", done.stdout)),
                f"the moved tree compiles and "
                f"trains{'' if command else ' (sources and build could not be hidden here)'}: {done.stderr}")
    tally.check(re.search(r"pp-compile \d+\.\d+\.\d+ \(commit (unknown|[0-9a-f]{7,}(, modified)?)\), LLVM 19\S*, "
                          r"targets? cpu", done.stdout), "--version")
    # The check can fail: without the library beside it the tool says where it looked.
    shutil.rmtree(os.path.join(moved, "share/pp/stdlib"))
    done = harness.call([f"{moved}/bin/pp-compile", source, "--emit=timeline"], expect=None)
    tally.check(done.returncode and f"{moved}/share/pp/stdlib" in done.stderr,
                "a tree without its library is refused: " + done.stderr.splitlines()[0])
    completions()
    if shutil.which("dpkg-deb"):
        package()


def package():
    """The package holds what an installed tree does, and asks for the packages of the libraries that the compiler is
    linked with."""
    harness.call([cmake.removesuffix("cmake") + "cpack", "-G", "DEB", "-B", home], cwd=build)
    path = next(os.path.join(home, name) for name in os.listdir(home) if name.endswith(".deb"))
    content = harness.call(["dpkg-deb", "-c", path]).stdout
    for name in ("usr/bin/pp-compile", "usr/lib/pp/libpp-runtime.a", "usr/share/pp/stdlib/models/llama.pipe",
                 "usr/share/man/man1/pp-translate.1"):
        tally.check(f" ./{name}\n" in content, f"{os.path.basename(path)} has {name}")
    depends = {word.split()[0] for word in harness.call(["dpkg-deb", "-f", path, "Depends"]).stdout.split(",")}
    needed = set(re.findall(r"NEEDED +(\S+)", harness.call(["objdump", "-p", compiler]).stdout))
    places = [place for name, place in re.findall(r"(\S+) => (\S+)", harness.call(["ldd", compiler]).stdout)
              if name in needed]
    real = {os.path.realpath(place) for place in places}  # packages list /lib, which is a link to /usr/lib
    asked = [harness.call(["dpkg", "-S", path], expect=None) for place in real
             for path in (place, place.removeprefix("/usr"))]
    owners = {line.split(":")[0] for done in asked for line in done.stdout.splitlines()}
    tally.check(len(owners) >= 2 and owners <= depends,
                f"it asks for {sorted(owners)}, as the compiler needs: {sorted(depends)}")


def completions():
    """What bash offers behind `pp-compile --emit=ti`, `pp-compile --ver` and `pp-run --ret`."""
    for words, expected in ((["pp-compile", "--emit", "=", "ti"], "timeline"), (["pp-compile", "--ver"], "--version"),
                            (["pp-run", "--ret"], "--retries"), (["pp-tokenize", "--eo"], "--eos"),
                            (["pp-check-hf", "--ra"], "--random"),
                            (["pp", "dra"], "draw")):
        script = os.path.join(build, "share/bash-completion/completions", words[0])
        line = (f"source {script}; compopt() {{ :; }}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
                f"_{words[0].replace('-', '_')}; echo \"${{COMPREPLY[@]}}\"")
        done = harness.call(["bash", "-c", line])
        tally.check(done.stdout.split() == [expected], f"bash completes {' '.join(words)}: {done.stdout.strip()}")


try:
    main()
finally:
    shutil.rmtree(home)
sys.exit(tally.close())
