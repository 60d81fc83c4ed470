"""Keeps damaged files for inspection."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from tidelog_core.log.checkpoint import sync_directory


def keep_file(path: Path, quarantine: Path) -> None:
    """Link the file into the directory, under a free name. Durable on return.

    Does nothing if the file does not exist. Raises ``OSError``.
    """
    quarantine.mkdir(parents=True, exist_ok=True)
    for number in count():
        name = f"{path.name}.{number}" if number else path.name
        try:
            os.link(path, quarantine / name)
        except FileExistsError:
            continue
        except FileNotFoundError:
            pass  # Nothing is left to keep.
        break
    sync_directory(quarantine)
