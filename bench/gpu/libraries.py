#!/usr/bin/env python3
"""Says where the libraries lie that a build for a GPU takes: the toolkit's, and pip's where the toolkit lacks one."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: libraries.py [TOOLKIT [PACKAGES]..]    (by default /usr/local/cuda, and pip's package `nvidia`)
# Lines of KEY=VALUE: CMake's variables; `headers` and `libraries` are folders. pip brings `libcublasLt.so.13` without
# the name `libcublasLt.so` that a linker looks for, so that the file itself is named. NCCL is built in only with MPI,
# by which ranks find each other.
import glob, os, shutil, sys

FILES = {"CUDA_cublasLt_LIBRARY": ("libcublasLt.so", "cublasLt.h"), "PP_NCCL": ("libnccl.so", "nccl.h"),
         "PP_CUDNN_INCLUDE": ("libcudnn.so", "cudnn.h")}


def packages():
    try:
        import nvidia
    except ImportError:
        return []
    return list(nvidia.__path__)


def found(pattern, folders):
    return next((path for folder in folders for path in sorted(glob.glob(os.path.join(folder, pattern)))), None)


def main():
    toolkit, *places = sys.argv[1:] or ["/usr/local/cuda", *packages()]
    own = [os.path.join(toolkit, "lib64"), os.path.join(toolkit, "lib"), "/usr/lib/x86_64-linux-gnu"]
    roots = [folder for place in places for folder in sorted(glob.glob(os.path.join(place, "*")))]
    folders = set()
    for variable, (library, header) in FILES.items():
        if found(library, own):
            continue
        its = found(library + ".*", [*own, *(os.path.join(root, "lib") for root in roots)])
        if not its:
            continue
        include = os.path.dirname(found(f"*/include/{header}", places) or "")
        if variable == "PP_CUDNN_INCLUDE":  # opened by the program; only its headers are needed
            its = include
            folders.add(os.path.dirname(found(library + ".*", [os.path.join(root, "lib") for root in roots]) or ""))
        else:
            folders.add(os.path.dirname(its))
        if its:
            print(f"{variable}={its}")
        if include and not os.path.exists(os.path.join(toolkit, "include", header)):
            print(f"headers={include}")
    for folder in sorted(folders - {""}):
        print(f"libraries={folder}")
    if not shutil.which("mpicc"):
        print("PP_MPI=OFF")


if __name__ == "__main__":
    main()
