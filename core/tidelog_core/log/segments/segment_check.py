"""Checks a sealed segment's file: every batch's CRC, offsets and leader epoch.

The CRC does not cover the leader epoch, which is compared with the log's own checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.leader_epochs import EpochEntry, is_epoch_at
from tidelog_core.log.segments.batch_scan import scan_file
from tidelog_core.records.batch import BatchHeader, check_crc


@dataclass(frozen=True, slots=True)
class SegmentDamage:
    """The damage of a segment's file."""

    path: Path
    position: int  # of the first damaged batch
    problem: str

    def __str__(self) -> str:
        return f"{self.path} is damaged at position {self.position}: {self.problem}"


def _at_once(_size_bytes: int) -> None:
    """Let the file be read without a limit on the rate."""


def check_segment(
    path: Path,
    *,
    base_offset: int,
    end_offset: int,
    size_bytes: int,
    leader_epochs: Sequence[EpochEntry],
    throttle: Callable[[int], None] = _at_once,
) -> SegmentDamage | None:
    """Read the whole file; return a description of its damage, or ``None``. Blocks.

    ``leader_epochs`` are the known epochs of the segment, oldest first. ``throttle`` is called
    with the size of each batch, and may block. A missing or unreadable file counts as damaged.
    """
    position, next_offset = 0, base_offset
    try:
        found_bytes = path.stat().st_size
        with closing(scan_file(path, min(size_bytes, found_bytes))) as batches:
            for buffer, at, start, header in batches:
                check_crc(buffer, at, header)
                require_epoch(header, leader_epochs)
                if header.base_offset < next_offset or header.next_offset > end_offset:
                    problem = f"offsets [{header.base_offset}, {header.next_offset}) do not belong"
                    return SegmentDamage(path, start, problem)
                next_offset, position = header.next_offset, start + header.size_bytes
                throttle(header.size_bytes)
    except CorruptRecordBatch as error:
        return SegmentDamage(path, position, str(error))
    except OSError as error:
        return SegmentDamage(path, position, f"it cannot be read: {error.strerror}")
    if position < size_bytes:
        problem = "no batch is there"
        if found_bytes < size_bytes:
            problem = f"the file has {found_bytes} bytes instead of {size_bytes}"
        return SegmentDamage(path, position, problem)
    return None


def require_epoch(header: BatchHeader, leader_epochs: Sequence[EpochEntry]) -> None:
    """Raise ``CorruptRecordBatch`` if the batch was not written in the epoch that it names."""
    epoch = header.partition_leader_epoch
    if not is_epoch_at(leader_epochs, epoch, header.base_offset):
        raise CorruptRecordBatch(
            f"the batch at offset {header.base_offset} was not written in leader epoch {epoch}"
        )
