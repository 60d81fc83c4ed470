"""Files that are on the disk alone, for who asks what waiting for it costs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.model import ReadableFile
from tidelog_node.disk.page_cache import is_in_memory


def write_cold(path: Path, data: bytes) -> None:
    """Write a file and have the system forget its pages; skip the test where it cannot."""
    # Who asks for pages of a file that are not in memory has the system begin to read them.
    probe = path.with_name(f"{path.name}-probe")
    for one in (probe, path):
        one.write_bytes(data)
        forget_pages(one)
    if is_in_memory(ReadableFile(probe), 0, len(data)):
        pytest.skip("the file system keeps its files in memory")


def forget_pages(path: Path) -> None:
    """Have the system forget what it holds of the file in memory, where it can."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # What is not on the disk yet cannot be forgotten.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
