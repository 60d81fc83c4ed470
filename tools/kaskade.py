"""kaskade from PyPI, in an environment of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.places import TOOLS_DIR, run

VERSION = "5.1.0"
_VENV = TOOLS_DIR / f"kaskade-{VERSION}-venv"
_STAMP = _VENV / ".installed"


def install() -> None:
    """Make ``command`` work. Raises ``ToolAbsent``."""
    if _STAMP.exists():
        return
    run([sys.executable, "-m", "venv", "--clear", _VENV])
    pip = str(_VENV / "bin" / "pip")
    run([pip, "install", "--quiet", "--disable-pip-version-check", f"kaskade=={VERSION}"])
    _STAMP.touch()


def command() -> Path | None:
    """Return the program, or ``None`` if it is missing."""
    return _VENV / "bin" / "kaskade" if _STAMP.exists() else None
