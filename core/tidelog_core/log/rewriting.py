"""Writing again what a disk may not have: before a log is opened that has met an error of it.

After an ``fsync`` that has failed nobody knows what is on the disk. Linux reports such an error
once and then takes the pages for clean: reading them shows what was written, the next
``fsync`` succeeds, and once they leave the page cache the old bytes are back. So neither is a
proof of anything, and what was not flushed with success before is not trusted to be there.

It need not be on the disk to be saved: whatever can be read and has its CRC right is what was
appended. Every segment file that reaches past the recovery point is copied to a new file, which
is flushed and takes the old one's name. Its pages are new ones: an ``fsync`` that succeeds on
them is worth as much as any. What cannot be read, or has lost its bytes, the recovery that
follows finds and cuts, as after a crash.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidelog_core.log.checkpoint import (
    CorruptCheckpoint,
    read_checkpoint,
    sync_directory,
    write_fully,
)
from tidelog_core.log.paths import (
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    TEMPORARY_SUFFIX,
    parse_segment_name,
    segment_path,
)

CHUNK_BYTES = 4 * 1024 * 1024


def rewrite_unflushed(directory: Path) -> None:
    """Make what can be read past the recovery point durable. Blocks. Raises ``OSError``.

    Nobody uses the log meanwhile. A crash leaves each file as it was, or the new one.
    """
    parsed = map(parse_segment_name, os.listdir(directory))  # noqa: PTH208
    bases = sorted(found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX)
    point = _recovery_point(directory)
    for base_offset, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following > point:
            _copy(segment_path(directory, base_offset, LOG_SUFFIX))
    sync_directory(directory)


def _recovery_point(directory: Path) -> int:
    try:
        rows = read_checkpoint(directory / RECOVERY_POINT_FILE)
    except CorruptCheckpoint:
        rows = None
    return rows[0][0] if rows else 0


def _copy(path: Path) -> None:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            position = 0
            while chunk := os.pread(source, CHUNK_BYTES, position):
                write_fully(target, chunk, position)
                position += len(chunk)
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
    temporary.rename(path)
