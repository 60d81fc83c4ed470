"""Writes unflushed segments again, before a log is opened that had a disk error.

After a failed ``fsync`` the content of the disk is unknown. Linux reports such an error once
and then marks the pages clean: reads return the written bytes, the next ``fsync`` succeeds, and
once the pages leave the page cache the old bytes are back. So neither a read nor a later
``fsync`` proves that unflushed bytes are durable.

They can still be saved: readable bytes with a right CRC are the appended ones. Every segment
file that reaches above the recovery point is copied to a new file, which is flushed and
renamed over the old one. A successful ``fsync`` of the new pages is proof. The
recovery that follows finds lost bytes and truncates the log there, as after a crash.

An unreadable page may become readable later. A caller that has waited long enough passes a
quarantine: the page is then replaced by zeros, everything around it is copied, and the old
file is kept. Recovery truncates the log at such a page if it is above the recovery point, and
otherwise reports the log as damaged.
"""

from __future__ import annotations

import logging
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
from tidelog_core.log.recovery.quarantine import keep_file

logger = logging.getLogger(__name__)

CHUNK_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 4096  # the least that a disk loses
LOST_PAGES_MAX = 256  # of a file; if more are unreadable, the whole disk has failed


def rewrite_unflushed(directory: Path, *, quarantine: Path | None = None) -> None:
    """Make the readable bytes above the recovery point durable. Blocks.

    With ``quarantine``, unreadable pages count as lost and their file is kept there. Raises
    ``OSError``, also for an unreadable page without a quarantine. The log must not be in use.
    A crash leaves each file old or new.
    """
    parsed = map(parse_segment_name, os.listdir(directory))  # noqa: PTH208
    bases = sorted(found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX)
    point = _recovery_point(directory)
    for base_offset, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following > point:
            _rewrite(segment_path(directory, base_offset, LOG_SUFFIX), quarantine)
    sync_directory(directory)


def _recovery_point(directory: Path) -> int:
    try:
        rows = read_checkpoint(directory / RECOVERY_POINT_FILE)
    except CorruptCheckpoint:
        rows = None
    return rows[0][0] if rows else 0


def _rewrite(path: Path, quarantine: Path | None) -> None:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            lost_count = _copy(source, target, lost_max=0 if quarantine is None else LOST_PAGES_MAX)
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
    if lost_count and quarantine is not None:
        keep_file(path, quarantine)
        logger.warning(
            "a segment file has lost bytes that the disk does not give, it is kept",
            extra={"path": str(path), "lost_bytes_max": lost_count * PAGE_BYTES},
        )
    temporary.rename(path)


def _copy(source: int, target: int, *, lost_max: int) -> int:
    """Copy the file; return the number of unreadable pages, which the copy has as zeros.

    Raises ``OSError`` if there are more than ``lost_max``.
    """
    size_bytes = os.fstat(source).st_size
    position, lost_count, step = 0, 0, CHUNK_BYTES
    while position < size_bytes:
        try:
            chunk = os.pread(source, step, position)
        except OSError:
            if step > PAGE_BYTES:
                step = PAGE_BYTES  # Only some of the pages may be lost.
                continue
            lost_count += 1
            if lost_count > lost_max:
                raise
            position += PAGE_BYTES
            continue
        if not chunk:
            break
        write_fully(target, chunk, position)
        position += len(chunk)
    os.ftruncate(target, min(position, size_bytes))
    return lost_count
