#!/usr/bin/env python3
"""Links every program that bench/gpu/pack.sh packed with the runtime that was built beside it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: link.py PROGRAMS    (from the folder where `build` lies; makes PROGRAMS/NAME/program)
import concurrent.futures, glob, os, re, subprocess, sys


def flags(build="build"):
    """What CMake found for the build, as the compiler would link it."""
    with open(os.path.join(build, "CMakeCache.txt")) as file:
        cache = dict(re.findall(r"^(\w+):\w+=(.*)$", file.read(), re.M))

    def known(name):
        return [path for path in cache.get(name, "").split(";") if path and not path.endswith("-NOTFOUND")]

    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(cache["PP_NVCC"])))
    folder = next(path for path in (f"{toolkit}/lib64", f"{toolkit}/targets/x86_64-linux/lib", f"{toolkit}/lib")
                  if os.path.exists(f"{path}/libcudart_static.a"))
    # The file itself: pip's libraries lack the name that `-l` looks for. NCCL serves only programs with MPI.
    files = known("CUDA_cublasLt_LIBRARY") or [f"{folder}/libcublasLt.so"]
    mpi = known("MPI_mpi_LIBRARY") if cache.get("PP_MPI") != "OFF" else []
    files += [*mpi, *(known("PP_NCCL") if mpi else []), *known("PP_DNNL"), *known("PP_BLAS")]
    paths = [f"-Wl,-rpath,{path}" for path in dict.fromkeys(map(os.path.dirname, [f"{folder}/", *files]))]
    return [f"{build}/lib/libpp-runtime-cuda.a", *files, f"-L{folder}", *paths, "-lcudart_static",
            *(["-fopenmp"] if known("PP_BLAS") else []), "-pthread", "-ldl", "-lrt"]


def main():
    libraries = flags()

    def link(folder):
        objects = sorted(glob.glob(os.path.join(folder, "*.o")))
        done = subprocess.run(["c++", *objects, *libraries, "-o", os.path.join(folder, "program")],
                              capture_output=True, text=True)
        return folder, done.returncode, done.stderr

    folders = sorted(path for path in glob.glob(os.path.join(sys.argv[1], "*")) if os.path.isdir(path))
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for folder, status, said in pool.map(link, folders):
            wrong += status != 0
            print(f"{os.path.basename(folder)}: {'linked' if status == 0 else said}", flush=True)
    print(f"{len(folders) - wrong} programs linked, {wrong} failed")
    return 1 if wrong or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
