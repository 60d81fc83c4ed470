"""promtool and Prometheus from Debian's package, unpacked into the folder of tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, require, run

PACKAGE = "prometheus"
SECONDS_MAX = 30
_ROOT = TOOLS_DIR / "prometheus"
_FOLDER = _ROOT / "usr" / "bin"


def install() -> None:
    """Make ``command`` work, unless the machine has Prometheus already."""
    if command() is not None:
        return
    require("dpkg")
    _ROOT.mkdir(parents=True, exist_ok=True)
    try:
        run([require("apt-get"), "download", PACKAGE], cwd=_ROOT)
    except ToolAbsent:
        run([require("apt-get"), "update"])  # the package lists may be missing or old
        run([require("apt-get"), "download", PACKAGE], cwd=_ROOT)
    for package in _ROOT.glob("*.deb"):
        run(["dpkg", "-x", package, _ROOT])


def command(program: str = "promtool") -> Path | None:
    """Return the program, ``promtool`` or ``prometheus``; ``None`` if it is missing."""
    if installed := shutil.which(program):
        return Path(installed)
    unpacked = _FOLDER / program
    return unpacked if unpacked.exists() else None


def check_metrics(program: Path, page: bytes) -> tuple[int, str]:
    """Return the exit status of ``promtool check metrics`` for a page, and what it said."""
    done = subprocess.run(
        [program, "check", "metrics"],
        input=page,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout.decode()
