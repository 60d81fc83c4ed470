"""What holds for every test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis

CHILD_PATH = Path(__file__).parent / "child_path"

os.environ["PYTHONPATH"] = os.pathsep.join(
    path for path in (str(CHILD_PATH), os.environ.get("PYTHONPATH")) if path
)

# Tests start processes by the hundred. One that compiles our modules anew, as some environments
# want it, takes half as much CPU again until it is ready.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nothing is timed in tests: on a busy machine any example may take long.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
