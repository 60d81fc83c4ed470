"""Folders of the tools that tests and benchmarks use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Resolved, for virtual environments hold their own path: of two checkouts that share one folder
# of tools, either may go.
TOOLS_DIR = (ROOT / ".cache" / "tools").resolve()


class ToolAbsent(Exception):
    """A program that an installation needs is missing on this machine."""


def require(program: str) -> str:
    """Return the path of a program of this machine. Raises ``ToolAbsent`` naming it."""
    path = shutil.which(program)
    if path is None:
        raise ToolAbsent(f"{program} is not on this machine: install it")
    return path


def run(command: Sequence[str | Path], *, cwd: Path | None = None) -> None:
    """Run a command to its end. Raises ``ToolAbsent`` with its last words if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()[-1000:]
        raise ToolAbsent(f"{command[0]} failed with exit code {done.returncode}: {words}")
