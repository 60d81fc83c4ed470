"""kcat from Debian's packages, unpacked into the folder of tools instead of installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.debian import unpack
from tools.places import TOOLS_DIR

PACKAGES = ("kcat", "librdkafka1", "libyajl2")
_ROOT = TOOLS_DIR / "kcat"


def install() -> None:
    """Make ``command`` work, unless the machine has kcat already."""
    if shutil.which("kcat") or (_ROOT / "usr" / "bin" / "kcat").exists():
        return
    unpack(PACKAGES, _ROOT)


def command() -> tuple[Path, dict[str, str]] | None:
    """Return the program and the environment it needs, or ``None`` if it is missing."""
    if installed := shutil.which("kcat"):
        return Path(installed), dict(os.environ)
    program = _ROOT / "usr" / "bin" / "kcat"
    libraries = [str(path.parent) for path in _ROOT.glob("usr/lib/*/librdkafka.so.1")]
    if not program.exists() or not libraries:
        return None
    return program, {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
