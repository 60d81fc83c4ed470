"""Spark 3.5 in an environment of its own: the version of EMR 7, for tests of the job bundle."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tools.places import TOOLS_DIR, run

VERSION = "3.5.6"
_VENV = TOOLS_DIR / f"spark-{VERSION}-venv"
_STAMP = _VENV / ".installed"


@dataclass(frozen=True, slots=True)
class Spark:
    """Its ``spark-submit``, and a Python that has Spark and nothing else."""

    submit: Path
    python: Path


def spark() -> Spark:
    """Return it; downloads it if it is missing. Raises ``ToolAbsent``."""
    python = _VENV / "bin" / "python"
    if not _STAMP.exists():
        run([sys.executable, "-m", "venv", "--clear", _VENV])
        options = ["--quiet", "--disable-pip-version-check"]
        run([python, "-m", "pip", "install", *options, f"pyspark=={VERSION}"])
        _STAMP.touch()
    (home,) = _VENV.glob("lib/python*/site-packages/pyspark")
    return Spark(home / "bin" / "spark-submit", python)
