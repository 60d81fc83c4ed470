"""Writes of many bytes into one file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.log.checkpoint import WRITE_BYTES_MAX, write_fully

POSITION = 7
SIZES_BYTES = [0, 1, WRITE_BYTES_MAX, WRITE_BYTES_MAX + 1, 3 * WRITE_BYTES_MAX + 5]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
def test_all_bytes_arrive_at_their_position(
    tmp_path: Path, size_bytes: int, kind: type[bytes | bytearray | memoryview]
) -> None:
    content, path = os.urandom(size_bytes), tmp_path / "log"
    path.write_bytes(b"before.")
    write(path, kind(content))
    assert path.read_bytes() == b"before." + content


def write(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write behind what the file has."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        write_fully(descriptor, content, POSITION)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("taken_bytes_max", [WRITE_BYTES_MAX, 300_000])
def test_no_write_is_longer_than_a_piece_however_little_the_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_bytes_max: int
) -> None:
    content, path = os.urandom(SIZES_BYTES[-1]), tmp_path / "log"
    path.write_bytes(b"before.")
    asked_bytes: list[int] = []
    pwrite = os.pwrite

    def take_some(descriptor: int, piece: memoryview, position: int) -> int:
        asked_bytes.append(len(piece))
        return pwrite(descriptor, piece[:taken_bytes_max], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", take_some)
        write(path, content)
    assert path.read_bytes() == b"before." + content
    assert max(asked_bytes) == WRITE_BYTES_MAX


def test_an_error_between_two_pieces_is_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before.")
    pwrite = os.pwrite

    def fail_behind_the_first(descriptor: int, piece: memoryview, position: int) -> int:
        if position > POSITION:
            raise OSError(28, "no space left")
        return pwrite(descriptor, piece, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail_behind_the_first)
        with pytest.raises(OSError, match="no space left"):
            write(path, bytes(2 * WRITE_BYTES_MAX))
    assert path.stat().st_size == POSITION + WRITE_BYTES_MAX
