"""Removing a partition's directory.

It is renamed to ``<name>.<random>-delete`` first: a topic of the same name can be made
at once, and a crash half-way leaves a directory whose name says what to do with it.
The name is cut where a long topic's would pass what file systems take.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from tidelog_core.log.checkpoint import sync_directory
from tidelog_core.log.paths import DELETED_DIRECTORY_SUFFIX

NAME_LENGTH_MAX = 200  # of what is kept of the name; 255 is what most file systems take


def rename_deleted(directory: Path) -> Path:
    """Rename the directory so that it counts as deleted. Durable on return. Raises ``OSError``."""
    name = directory.name[:NAME_LENGTH_MAX]
    doomed = directory.with_name(f"{name}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")
    directory.rename(doomed)
    sync_directory(directory.parent)
    return doomed


def remove_directory(doomed: Path) -> None:
    """Remove a directory that ``rename_deleted`` has named. Blocks. Raises ``OSError``."""
    shutil.rmtree(doomed)


def remove_deleted_logs(parent: Path) -> int:
    """Finish the deletions that a crash interrupted in ``parent``. Returns how many."""
    doomed = [path for path in parent.iterdir() if path.name.endswith(DELETED_DIRECTORY_SUFFIX)]
    for path in doomed:
        remove_directory(path)
    return len(doomed)
