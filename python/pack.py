"""Packs the wheel `pp-schedules` from a clone with a build: what pip calls, in plain Python (PEP 517)."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The wheel has the package, the program `pp` as pp_schedules/bin/pp, and the library where this program looks for it.
# PP_BUILD names another folder of a build than `build`. A static program runs on every Linux; another one (of a build
# with sanitizers) on this machine.
from __future__ import annotations

import base64, hashlib, io, os, platform, re, sys, tarfile, zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
METADATA = """Metadata-Version: 2.1
Name: pp-schedules
Version: {version}
Summary: Pipeline-parallel schedules that are proved, for PyTorch modules
License: Apache-2.0 WITH LLVM-exception
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch>=2.6; extra == "torch"
Requires-Dist: numpy; extra == "torch"
Description-Content-Type: text/markdown

{page}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: pp\nRoot-Is-Purelib: false\nTag: {tag}\n"
ENTRIES = "[console_scripts]\npp-schedules = pp_schedules.cli:main\npp = pp_schedules.cli:main\n"
#: Folder of the sources, the ending of its files, and its place in the wheel.
SHELVES = (("python/pp_schedules", ".py", "pp_schedules"), ("stdlib", ".pipe", "pp_schedules/share/pp/stdlib"))


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def version() -> str:
    return re.search(r"project\(pp VERSION ([\d.]+)", read(os.path.join(ROOT, "CMakeLists.txt")).decode())[1]


def metadata() -> bytes:
    return METADATA.format(version=version(), page=read(os.path.join(HERE, "README.md")).decode()).encode()


def compiler() -> tuple[bytes, str]:
    """The bytes of the program and the wheel's tag. Ends with a sentence where it was not built."""
    path = os.path.join(os.environ.get("PP_BUILD") or os.path.join(ROOT, "build"), "bin", "pp")
    if not os.path.exists(path):
        sys.exit(f"pp-schedules: {path} is not there: run tools/build.sh in a clone first, or install a wheel")
    data = read(path)
    needs_loader = b"/ld-linux" in data[:65536]
    return data, f"py3-none-{'linux' if needs_loader else 'manylinux_2_17'}_{platform.machine()}"


def sources() -> dict[str, str]:
    """{path in the wheel: path in the clone} of the package and the library."""
    files = {}
    for folder, end, place in SHELVES:
        for where, folders, names in os.walk(os.path.join(ROOT, folder)):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                if name.endswith(end):
                    path = os.path.relpath(os.path.join(where, name), ROOT)
                    files[place + path[len(folder):]] = path
    return files


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    """Writes the wheel into a folder and returns its name."""
    binary, tag = compiler()
    info = f"pp_schedules-{version()}.dist-info"
    files = {target: read(os.path.join(ROOT, path)) for target, path in sources().items()}
    files.update({"pp_schedules/bin/pp": binary, f"{info}/METADATA": metadata(),
                  f"{info}/WHEEL": WHEEL.format(tag=tag).encode(), f"{info}/entry_points.txt": ENTRIES.encode(),
                  f"{info}/LICENSE": read(os.path.join(ROOT, "LICENSE"))})
    record = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    name = f"pp_schedules-{version()}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))      # the same bytes whenever it is packed
            entry.external_attr = (0o100755 if path.endswith("/bin/pp") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return name


def build_sdist(sdist_directory, config_settings=None) -> str:
    """Writes the sources of the package, without a program, into a folder and returns the name."""
    base = f"pp_schedules-{version()}"
    names = ["pyproject.toml", "CMakeLists.txt", "LICENSE", "python/pack.py", "python/README.md", *sources().values()]
    files = {"PKG-INFO": metadata(), **{name: read(os.path.join(ROOT, name)) for name in names}}
    with tarfile.open(os.path.join(sdist_directory, f"{base}.tar.gz"), "w:gz") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return f"{base}.tar.gz"
