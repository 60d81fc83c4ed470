"""Installs the Python version of the Lambda functions, for tests only: Debian has another one."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import javacpp_python
from tools.javacpp_python import X86_64
from tools.places import ToolAbsent

MINOR = "3.12"
_PROGRAM = javacpp_python.root_of(MINOR) / "bin" / f"python{MINOR}"


def install() -> None:
    """Install the version, which ``closest`` then returns."""
    if (sys.platform, platform.machine()) != ("linux", X86_64):
        raise ToolAbsent(f"the tests have one for Linux on {X86_64} only")
    javacpp_python.install(MINOR)


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter."""

    program: Path
    minor: str  # the version, such as «3.12»


def closest() -> Python:
    """Return Lambda's version if it is installed, else the version that runs this."""
    if _PROGRAM.exists():
        return Python(_PROGRAM, MINOR)
    own = Path(sys.base_prefix) / "bin" / "python3"
    return Python(own, f"{sys.version_info.major}.{sys.version_info.minor}")
