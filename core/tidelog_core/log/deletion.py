"""Removes a partition's directory.

The directory is first renamed to ``<name>.<random>-delete``. A topic of the same name can
then be created immediately, and after a crash the next start recognizes the directory.
The name is shortened if it would exceed the file system's limit.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from tidelog_core.log.checkpoint import sync_directory
from tidelog_core.log.paths import DELETED_DIRECTORY_SUFFIX

NAME_LENGTH_MAX = 200  # characters kept of the directory's name; most file systems allow 255


def rename_deleted(directory: Path) -> Path:
    """Rename the directory so that it counts as deleted. Raises ``OSError``.

    Durable when ``remove_directories`` has begun; until then a power cut may undo it whole.
    """
    name = directory.name[:NAME_LENGTH_MAX]
    renamed = directory.with_name(f"{name}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")
    directory.rename(renamed)
    return renamed


def remove_directories(directories: Sequence[Path]) -> None:
    """Remove directories that ``rename_deleted`` has named. Blocks. Raises ``OSError``."""
    # The renames first: a partly removed directory must not reappear under its old name.
    for parent in {path.parent for path in directories}:
        sync_directory(parent)
    for path in directories:
        shutil.rmtree(path)


def remove_deleted_logs(parent: Path) -> int:
    """Finish the deletions that a crash interrupted in ``parent``. Returns how many."""
    directories = [
        path for path in parent.iterdir() if path.name.endswith(DELETED_DIRECTORY_SUFFIX)
    ]
    remove_directories(directories)
    return len(directories)
