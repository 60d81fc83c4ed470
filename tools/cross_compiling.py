"""Compiles the modules for arm64 Linux on another kind of machine, by Debian's cross compiler.

What mypyc writes is C that depends on the version of Python only, so the Python that compiles must
have the version that the wheel is for. Its own headers do: those of two kinds of 64-bit Linux
differ in how Python itself was built, not in what an extension sees. So setuptools is told another
compiler, another name for its files and another platform, and nothing else changes.

Debian's own Python does not do, because its headers include those of one kind of machine. One of
``tools.javacpp_python`` does, or one built from source.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping

from tools.javacpp_python import ARM64
from tools.places import ToolAbsent, require

COMPILER = "aarch64-linux-gnu-gcc"  # of Debian's package gcc-aarch64-linux-gnu
HEADERS = "libc6-dev-arm64-cross"  # Debian's package, which the compiler's only recommends


def is_needed(machine: str) -> bool:
    """Whether another compiler than this machine's makes wheels for that kind of machine."""
    return machine != platform.machine()


def variables(minor: str, machine: str) -> Mapping[str, str]:
    """Return the variables with which Python «3.14», say, compiles for that kind of machine.

    Raises ``ToolAbsent``.
    """
    if machine != ARM64:
        raise ToolAbsent(f"this machine compiles for itself and for {ARM64}, not for {machine}")
    compiler = check_compiler()
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{minor.replace('.', '')}-{machine}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }


def check_compiler() -> str:
    """Return the path of the compiler. Raises ``ToolAbsent`` if it, or its C library, is missing.

    Without the library's headers it reads those of this machine, and fails in the middle of them.
    """
    compiler = require(COMPILER)
    program = "#include <stdlib.h>\n"
    command = [compiler, "-E", "-x", "c", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolAbsent(f"{COMPILER} lacks the headers of its C library: install {HEADERS}")
    return compiler
