#!/usr/bin/env python3
"""Links every program that bench/gpu/pack.sh packed with the runtime that was built beside it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: link.py PROGRAMS    (from the folder that holds `target`; makes PROGRAMS/NAME/program)
import concurrent.futures, glob, os, re, subprocess, sys


def cache(build, name):
    with open(os.path.join(build, "CMakeCache.txt")) as file:
        found = re.search(rf"^{name}:\w+=(.*)$", file.read(), re.M)
    return found.group(1) if found else ""


def flags():
    """What CMake found for the build, as the compiler would link it."""
    with open("target") as file:
        target = file.read().strip()
    if target == "cpu":  # a rehearsal, with the build that packed
        with open("build-of-rehearsal") as file:
            build = file.read().strip()
        libraries = [cache(build, "PP_DNNL"), cache(build, "PP_BLAS"), *cache(build, "MPI_mpi_LIBRARY").split(";")]
        return [f"{build}/lib/libpp-runtime-testing.a", *libraries, "-fopenmp", "-pthread"]
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(cache("build", "PP_NVCC"))))
    folder = next(path for path in (f"{toolkit}/lib64", f"{toolkit}/targets/x86_64-linux/lib", f"{toolkit}/lib")
                  if os.path.exists(f"{path}/libcudart_static.a"))
    return ["build/lib/libpp-runtime-cuda.a", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lcublasLt", "-lcudart_static",
            "-pthread", "-ldl", "-lrt"]


def main():
    libraries = flags()

    def link(folder):
        objects = sorted(glob.glob(os.path.join(folder, "*.o")))
        done = subprocess.run(["c++", *objects, *libraries, "-o", os.path.join(folder, "program")],
                              capture_output=True, text=True)
        return folder, done.returncode, done.stderr

    folders = sorted(path for path in glob.glob(os.path.join(sys.argv[1], "*")) if os.path.isdir(path))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(link, folders))
    for folder, status, said in results:
        if status:
            print(f"{folder}: {said}")
    wrong = sum(status != 0 for _, status, _ in results)
    print(f"{len(results) - wrong} programs linked, {wrong} failed")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
