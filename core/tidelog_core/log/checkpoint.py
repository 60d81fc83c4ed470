"""Reads and writes small files of integers that are replaced atomically.

Layout, text: a version line, one line per row of space-separated decimal numbers,
and a last line ``crc32c <8 hex digits>`` over everything before it. If the last line
is right, so are all the others.

A write goes to a temporary file that is fsynced and renamed over the old one, and
then the directory is fsynced: a crash leaves the old rows or the new ones.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from crc32c import crc32c

from tidelog_core.log.paths import TEMPORARY_SUFFIX

# For a longer write the page cache takes longer runs of free pages. Those are what a hypervisor
# takes back first, and then each of them costs a fault outside of the machine.
WRITE_BYTES_MAX = 1_000_000

READ_BYTES = 65_536  # of one step

_VERSION_LINE = b"1\n"
_CRC_PREFIX = b"crc32c "
_LAST_LINE = re.compile(rb"crc32c [0-9a-f]{8}\n")

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Failures of a write that pass, and are no sign of a bad disk.
OUT_OF_ROOM = DISK_FULL | {errno.EMFILE, errno.ENFILE, errno.EFBIG}

Rows = Sequence[Sequence[int]]


class CorruptCheckpoint(Exception):
    """The file's last line does not match the lines before it."""


def write_checkpoint(path: Path, rows: Iterable[Sequence[int]], *, is_durable: bool = True) -> None:
    """Replace the file's rows. Durable on return, unless ``is_durable`` is false.

    The bytes are fsynced before the rename in any case. A rename that is not durable needs
    ``sync_directory`` before anything relies on it.
    """
    write_file(path, encode_rows(rows), is_durable=is_durable)


def write_unsynced(path: Path, rows: Iterable[Sequence[int]]) -> None:
    """Replace the file's rows. After a power cut it may have any bytes, or be gone.

    A process that ends within it leaves the old rows or the new ones.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    temporary.write_bytes(encode_rows(rows))
    temporary.rename(path)


def encode_rows(rows: Iterable[Sequence[int]]) -> bytes:
    """Return the bytes of a checkpoint file."""
    lines = [" ".join(map(str, row)).encode() + b"\n" for row in rows]
    body = _VERSION_LINE + b"".join(lines)
    return body + _CRC_PREFIX + f"{crc32c(body):08x}\n".encode()


def read_checkpoint(path: Path | str) -> list[list[int]] | None:
    """Return the rows, or None if there is no such file. Raises ``CorruptCheckpoint``."""
    try:
        content = read_file(path)
    except FileNotFoundError:
        return None
    return decode_rows(content)


def read_file(path: Path | str) -> bytes:
    """Return the bytes of a small file. Raises ``OSError``.

    With half of the system calls of a file object: a start reads five such files of each log.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = piece = os.read(descriptor, READ_BYTES)
        while piece:
            piece = os.read(descriptor, READ_BYTES)
            content += piece
        return content
    finally:
        os.close(descriptor)


def decode_rows(content: bytes) -> list[list[int]]:
    """Return the rows in a checkpoint file's bytes. Raises ``CorruptCheckpoint``."""
    body, prefix, crc = content.rpartition(_CRC_PREFIX)
    if not prefix or not body.startswith(_VERSION_LINE):
        raise CorruptCheckpoint("the file is cut short or of an unknown version")
    if crc != f"{crc32c(body):08x}\n".encode():
        raise CorruptCheckpoint("the CRC does not match")
    lines = body[len(_VERSION_LINE) :].splitlines()
    return [[int(number) for number in line.split()] for line in lines]


def decode_leading_rows(content: bytes) -> tuple[list[list[int]], bool]:
    """Return the rows of consecutive checkpoint files, and whether all files are undamaged.

    Stops at the first damaged file. Raises ``CorruptCheckpoint`` if that is the first of all.
    """
    rows: list[list[int]] = []
    start = 0
    for end in _LAST_LINE.finditer(content):
        try:
            rows += decode_rows(content[start : end.end()])
        except CorruptCheckpoint:
            break
        start = end.end()
    if not start:
        raise CorruptCheckpoint("the first checkpoint is cut short or damaged")
    return rows, start == len(content)


def write_file(path: Path, content: bytes | bytearray, *, is_durable: bool = True) -> None:
    """Replace a file by way of a temporary one: fsync, rename, fsync of the directory."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_fully(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    if is_durable:
        sync_directory(path.parent)


def write_file_in(directory: int, name: str, content: bytes) -> None:
    """Replace a file of an open directory as ``write_file`` does. Durable on return."""
    temporary = name + TEMPORARY_SUFFIX
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o644, dir_fd=directory)
    try:
        write_fully(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def write_fully(descriptor: int, content: bytes | bytearray | memoryview, position: int) -> None:
    """Write all the bytes at ``position``, in pieces of at most ``WRITE_BYTES_MAX``.

    The system may take a piece in several steps.
    """
    size_bytes, written = len(content), 0
    if size_bytes <= WRITE_BYTES_MAX:
        written = os.pwrite(descriptor, content, position)
        if written == size_bytes:
            return
    view = memoryview(content)
    while written < size_bytes:
        piece = view[written : written + WRITE_BYTES_MAX]
        written += os.pwrite(descriptor, piece, position + written)


def sync_directory(directory: Path) -> None:
    """Make the names in the directory durable: files made, renamed and removed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable; not its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
