"""Folders and programs of the tools that tests and benchmarks use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Resolved, because a virtual environment contains its own absolute path: of two checkouts that
# share this folder, either may be removed.
TOOLS_DIR = (ROOT / ".cache" / "tools").resolve()


class ToolAbsent(Exception):
    """A program that an installation needs is missing on this machine."""


def require(program: str) -> str:
    """Return the path of a program on this machine. Raises ``ToolAbsent`` with its name."""
    path = shutil.which(program)
    if path is None:
        raise ToolAbsent(f"{program} is not on this machine: install it")
    return path


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command. Raises ``ToolAbsent`` with the end of its output if it fails.

    ``environment`` is ours unless it is given.
    """
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()[-4000:]
        raise ToolAbsent(f"{command[0]} failed with exit code {done.returncode}: {words}")
