"""Installs Python versions that Debian does not have, for building and testing packages.

Maven Central has JavaCPP's builds of CPython: an interpreter with its headers and its standard
library, made for calling Python from Java. It also runs by itself, once its program is executable
and its libraries are where the modules expect them. Some builds are for arm64 too.
"""

from __future__ import annotations

import platform
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools import maven
from tools.places import TOOLS_DIR, ToolAbsent, run

X86_64, ARM64 = "x86_64", "aarch64"  # as the kernel names them
_PLATFORMS = {X86_64: "linux-x86_64", ARM64: "linux-arm64"}
_FOLDERS = {X86_64: "", ARM64: "-arm64"}
_CHECK = "import ctypes, sqlite3, ssl, zlib"


@dataclass(frozen=True, slots=True)
class Release:
    """A build of CPython."""

    version: str
    javacpp: str  # the release of JavaCPP's presets that it is part of


RELEASES = {
    "3.12": Release("3.12.1", "1.5.10"),
    "3.13": Release("3.13.5", "1.5.12"),  # not for arm64
    "3.14": Release("3.14.3", "1.5.13"),
}


def install(minor: str, machine: str = X86_64) -> Path:
    """Return the root of this Python, such as «3.14»; installs it if it is missing.

    Its program is ``bin/python3.14``, and runs on that kind of machine only. Raises ``ToolAbsent``.
    """
    release = RELEASES.get(minor)
    if release is None:
        raise ToolAbsent(f"there is no build of Python {minor}, but of {', '.join(RELEASES)}")
    if sys.platform != "linux":
        raise ToolAbsent("the builds of Python that are used are for Linux only")
    root = root_of(minor, machine)
    if not root.exists():
        _install(release, minor, machine, root)
    return root


def root_of(minor: str, machine: str = X86_64) -> Path:
    """Return where this Python is if it is installed."""
    return TOOLS_DIR / f"python-{RELEASES[minor].version}{_FOLDERS[machine]}"


def _install(release: Release, minor: str, machine: str, root: Path) -> None:
    build = _PLATFORMS[machine]
    scratch = root.with_name(f"{root.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    coordinates = f"org.bytedeco:cpython:{release.version}-{release.javacpp}:{build}"
    maven.fetch_jars(scratch, coordinates, is_alone=True)
    [jar] = (scratch / "jars").glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(scratch)
    unpacked = scratch / "org" / "bytedeco" / "cpython" / build
    program = unpacked / "bin" / f"python{minor}"
    program.chmod(0o755)
    # The modules search libraries beside themselves and one level up.
    for library in unpacked.glob("libffi.so.*"):
        library.rename(unpacked / "lib" / f"python{minor}" / library.name)
    if machine == platform.machine():
        run([program, "-c", _CHECK])
    unpacked.rename(root)
    shutil.rmtree(scratch)
