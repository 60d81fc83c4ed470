"""Files whose pages are not in memory, for tests of reads that wait for the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.model import ReadableFile
from tidelog_node.disk.page_cache import is_in_memory


def write_cold(path: Path, data: bytes) -> None:
    """Write a file and evict its pages; skip the test where the system keeps them."""
    # The check itself makes the system start reading the pages, so it is made on another file.
    probe = path.with_name(f"{path.name}-probe")
    for one in (probe, path):
        one.write_bytes(data)
        forget_pages(one)
    if is_in_memory(ReadableFile(probe), 0, len(data)):
        pytest.skip("the file system keeps its files in memory")


def forget_pages(path: Path) -> None:
    """Ask the system to evict the file's pages from memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # Dirty pages cannot be evicted.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
