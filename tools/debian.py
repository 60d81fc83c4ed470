"""Debian's packages, unpacked into the folder of tools instead of installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.places import ToolAbsent, require, run


def unpack(packages: Sequence[str], root: Path) -> None:
    """Download the packages and unpack them below ``root``. Raises ``ToolAbsent``."""
    require("dpkg")
    root.mkdir(parents=True, exist_ok=True)
    try:
        run([require("apt-get"), "download", *packages], cwd=root)
    except ToolAbsent:
        run([require("apt-get"), "update"])  # the package lists may be missing or old
        run([require("apt-get"), "download", *packages], cwd=root)
    for package in root.glob("*.deb"):
        run(["dpkg", "-x", package, root])
