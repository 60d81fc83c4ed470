"""What is in memory of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.model import ReadableFile
from tidelog_node.disk.page_cache import is_in_memory, read_in

from tests.support.cold_files import write_cold

SIZE_BYTES = 2_097_152


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(os.urandom(SIZE_BYTES))
    assert is_in_memory(ReadableFile(tmp_path / "log"), 0, SIZE_BYTES)


def test_what_was_read_in_is_in_memory_and_the_rest_of_the_file_is_not(disk_folder: Path) -> None:
    write_cold(disk_folder / "log", os.urandom(4 * SIZE_BYTES))
    file = ReadableFile(disk_folder / "log")
    read_in(file, SIZE_BYTES - 1, 262_146)
    assert is_in_memory(file, SIZE_BYTES - 1, 262_146)
    assert not is_in_memory(file, SIZE_BYTES, 3 * SIZE_BYTES)


def test_a_file_that_is_shorter_than_it_was_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(1000))
    read_in(ReadableFile(tmp_path / "log"), 500, SIZE_BYTES)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    file = ReadableFile(tmp_path / "log", flags=os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_in(file, 0, 10)
    assert is_in_memory(file, 0, 10)
