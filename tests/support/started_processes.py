"""The environment of the processes that tests, and ``tools.chaos``, start by the hundred."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Its ``hypothesis`` cannot be imported. kio would, where it is installed; users do not have it.
CHILD_PATH = Path(__file__).parents[1] / "child_path"


def start_as_for_users() -> None:
    """Let the processes that start from now on begin as fast as those of users.

    With hypothesis a node takes twice the processor's time until it is ready. One that compiles our
    modules anew, as some environments want it, takes half as much again.
    """
    paths = [str(CHILD_PATH), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
