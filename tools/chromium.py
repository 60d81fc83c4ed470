"""Chromium from Debian's package, for tests of the console in a browser."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.places import ToolAbsent, require, run

PACKAGE = "chromium"


def install() -> None:
    """Make ``command`` work, unless the machine has Chromium already. Needs root."""
    if command() is not None:
        return
    if os.geteuid() != 0:
        raise ToolAbsent(f"install {PACKAGE} as root: apt-get install {PACKAGE}")
    install_it = [require("apt-get"), "install", "--yes", "--no-install-recommends", PACKAGE]
    try:
        run(install_it)
    except ToolAbsent:
        run([require("apt-get"), "update"])  # the package lists may be missing or old
        run(install_it)


def command() -> Path | None:
    """Return the program, ``None`` if it is missing."""
    found = shutil.which("chromium")
    return None if found is None else Path(found)
