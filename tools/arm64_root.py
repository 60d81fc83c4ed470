"""Runs arm64 programs on another kind of machine: Debian's arm64 libraries, and qemu's emulation.

The root is made once, and nobody may change it. debootstrap fetches its packages and runs none of
their programs. It has no Python: ``tools.javacpp_python`` has some. A program runs in namespaces of
its own, in which the kernel gives every arm64 program to qemu, so its children are emulated too.
Needs root, and Debian's packages ``qemu-user-static`` and ``util-linux``.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import debian_root
from tools.places import TOOLS_DIR, require, run

EMULATOR = "qemu-aarch64-static"
PACKAGES = ("ca-certificates", "coreutils", "dash", "libsqlite3-0", "libstdc++6", "zlib1g")
# Where a program finds the folders that it is given: the root cannot be changed.
PLACES = ("/opt/python", "/opt/packages", "/data")
_ROOT = TOOLS_DIR / f"debian-{debian_root.SUITE}-arm64-root-1"
_BINFMT = "/proc/sys/fs/binfmt_misc"
# The first bytes of a 64-bit little-endian ELF file for arm64, and which bits of them count. The
# kernel opens the interpreter at once («F»), because it is not in the root.
_MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
_MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"


def arm64_root() -> Path:
    """Return the folder; makes it if it is missing. Raises ``ToolAbsent``."""
    if _ROOT.exists():
        return _ROOT
    unpack = require("dpkg-deb")
    scratch = _ROOT.with_name(f"{_ROOT.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    debian_root.bootstrap(scratch, PACKAGES, "--arch=arm64", "--foreign")
    archives = scratch / "var" / "cache" / "apt" / "archives"
    for package in sorted(archives.glob("*.deb")):
        run([unpack, "-x", package, scratch])
    shutil.rmtree(archives)
    for place in PLACES:
        (scratch / place.lstrip("/")).mkdir(parents=True)
    scratch.rename(_ROOT)
    return _ROOT


def command(
    program: Sequence[str], folders: Mapping[str, Path], environment: Mapping[str, str]
) -> list[str]:
    """Return the command that runs a program in the root. It shares the network of this machine.

    ``folders`` are those that the program finds at ``PLACES``. Raises ``ToolAbsent``.
    """
    root = arm64_root()
    registered = f":arm64:M::{_MAGIC}:{_MASK}:{require(EMULATOR)}:F"
    mounts = {"/dev": Path("/dev"), "/proc": Path("/proc"), **folders}
    steps = [
        ["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT],
        *(["mount", "--rbind", str(path), f"{root}{place}"] for place, path in mounts.items()),
    ]
    variables = [f"{name}={value}" for name, value in environment.items()]
    script = " && ".join(
        (
            shlex.join(steps[0]),
            f"printf %s {shlex.quote(registered)} > {_BINFMT}/register",
            *(shlex.join(step) for step in steps[1:]),
            shlex.join(["exec", "chroot", str(root), "/usr/bin/env", "-i", *variables, *program]),
        )
    )
    # The kernel's table of interpreters is the namespace's own, so the machine's stays as it is.
    return [require("unshare"), "--user", "--map-root-user", "--mount", "sh", "-c", script]
