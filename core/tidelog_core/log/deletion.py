"""Removing a partition's directory.

It is renamed to ``<name>.<random>-delete`` first: a topic of the same name can be made
at once, and a crash half-way leaves a directory whose name says what to do with it.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from tidelog_core.log.checkpoint import sync_directory
from tidelog_core.log.paths import DELETED_DIRECTORY_SUFFIX


def delete_directory(directory: Path) -> None:
    """Remove the directory. Durable on return. Raises ``OSError``."""
    doomed = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")
    directory.rename(doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed)


def remove_deleted_logs(parent: Path) -> int:
    """Finish the deletions that a crash interrupted in ``parent``. Returns how many."""
    doomed = [path for path in parent.iterdir() if path.name.endswith(DELETED_DIRECTORY_SUFFIX)]
    for path in doomed:
        shutil.rmtree(path)
    return len(doomed)
