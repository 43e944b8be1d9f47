"""Writes for ctest the tests that tests.txt lists, which says what its words mean; CMake runs it when it configures."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: tests.py BUILD OUTPUT NAME=VALUE..     what CMake found; @NAME@ in tests.txt is the value
import os, re, shlex, sys

HERE = os.path.dirname(os.path.abspath(__file__))
LIT = """config.pp_source = "{source}"
config.pp_build = "{build}/test"
config.pp_tools = "{build}/bin"
config.llvm_tools = "{llvm}"
lit_config.load_config(config, config.pp_source + "/lit.cfg.py")
"""
LIT_SITE = """config.pp_suite = "{suite}"\nlit_config.load_config(config, "{build}/test/lit.site.cfg.py")\n"""


def listed():
    """The words of each test."""
    with open(os.path.join(HERE, "tests.txt")) as file:
        text = "".join(line for line in file if line.strip() and not line.startswith("#"))
    return [shlex.split(line) for line in re.sub(r"\n +", " ", text).splitlines()]


def command_of(name, program, arguments, build):
    """The command, and the target that it needs."""
    if program == "lit":
        suite = os.path.join(build, "test", *arguments)
        os.makedirs(suite, exist_ok=True)
        with open(os.path.join(suite, "lit.site.cfg.py"), "w") as file:
            file.write(LIT_SITE.format(suite=arguments[0], build=build))
        return [sys.executable, "@llvm@/../build/utils/lit/lit.py", "-sv", suite], "pp-compile"
    if program.endswith(".py"):
        folder = os.path.join(build, "test", "run", name.removeprefix("run-"))
        script = os.path.join(HERE, "run", program)
        return [sys.executable, script, os.path.join(build, "bin", "pp-compile"), folder, *arguments], "pp-compile"
    return [os.path.join(build, "bin", program), *arguments], program


def main():
    build, output, *pairs = sys.argv[1:]
    values = dict(pair.split("=", 1) for pair in pairs)
    run = os.path.join(HERE, "run")
    values |= dict(run=run, inputs=os.path.join(run, "Inputs"), libraries=os.path.join(build, "lib"))
    with open(os.path.join(build, "test", "lit.site.cfg.py"), "w") as file:
        file.write(LIT.format(source=HERE, build=build, llvm=values["llvm"]))
    targets, lines = set(values["targets"].split(";")), []
    if values["compiler"] == "ON":
        targets.add("pp-compile")
    for name, needs, environment, program, *arguments in listed():
        has_mpi = values["mpi"] == "TRUE"
        command, target = command_of(name, program, arguments, build)
        runtime = re.match(r"runtime=(.*)", environment)
        needed = {target, f"pp-runtime-{runtime[1]}" if runtime else target}
        if not needed <= targets or "mpi" in needs.split(",") and not has_mpi:
            continue
        if runtime:
            environment = f"PP_TEST_RUNTIME=@libraries@/libpp-runtime-{runtime[1]}.a"
        if "mpi?" in needs.split(",") and not has_mpi:
            command.append("--without-mpi")
        if program.endswith(".py"):  # what has passed leaves nothing: all folders together would be 10 GB
            command = ["sh", "-c", 'folder=$4; "$@" && rm -rf "$folder"', "sh", *command]
        for flag in re.findall(r"cpu:(\w+)", needs):
            command = ["sh", "-c", f'grep -qw {flag} /proc/cpuinfo || exit 77; exec "$@"', "sh", *command]
        lines.append(f"add_test([=[{name}]=] " + " ".join(f"[=[{word}]=]" for word in command) + ")")
        # Long ones start first. 77: what the test needs is not on this machine. Threads of OpenMP that wait, such as
        # those of torch, sleep: more tests run at once than there are cores.
        words = ["OMP_WAIT_POLICY=passive"] + [environment] * (environment != "-")
        more = f" ENVIRONMENT [=[{';'.join(words)}]=]"
        tier = ({"quick", "long"} & set(needs.split(",")) or {"default"}).pop()
        more += f" LABELS {tier}"
        most = 10800 if tier == "long" else 1800  # seconds
        lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES TIMEOUT {most} COST 10 SKIP_RETURN_CODE 77{more})")
    text = re.sub(r"@(\w+)@", lambda match: values[match[1]], "\n".join(lines) + "\n")
    with open(output, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
