"""The checkpoint files of one log: its start, recovery point, sealed segments, compacted end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.log.checkpoint import CorruptCheckpoint, read_checkpoint
from tidelog_core.log.paths import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LEADER_EPOCH_FILE,
    RECOVERY_POINT_FILE,
    SEGMENT_FILE,
    START_OFFSET_FILE,
)
from tidelog_core.log.segments.seal_file import read_seals
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.segments.segment_indexes import SealRecord


@dataclass(slots=True)
class Checkpoints:
    """The content of a log's checkpoint files."""

    log_start_offset: int
    local_start_offset: int | None  # None: unknown
    recovery_point: int | None  # None: unknown, everything must be read
    epochs: list[list[int]] | None  # None: unknown, to be read from the batches
    seals: list[SealRecord]  # two for a segment that was being replaced, see ``cleaned_segments``
    seals_are_whole: bool  # whether rows may be appended to their file
    clean_end: list[int] | None  # log end offset, active base offset, active size
    cleaned_up_to: int
    _seals_at: dict[int, list[SealRecord]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the records by segment."""
        for seal in self.seals:
            self._seals_at.setdefault(seal.base_offset, []).append(seal)

    def seal_of(self, segment: LogSegment) -> SealRecord | None:
        """Return the record that fits the segment's extent, if exactly one does."""
        extent = (segment.base_offset, segment.end_offset, segment.size_bytes)
        fitting = [seal for seal in self.seals_at(segment.base_offset) if seal[:3] == extent]
        return fitting[0] if len(fitting) == 1 else None

    def sizes_of(self, segment: LogSegment) -> list[tuple[int, int]]:
        """Return the end offsets and sizes that the segment was ever sealed with."""
        return [seal[1:3] for seal in self.seals_at(segment.base_offset)]

    def seals_at(self, base_offset: int) -> Sequence[SealRecord]:
        """Return all seal records of a segment, right or wrong."""
        return self._seals_at.get(base_offset, ())


def read_checkpoints(directory: Path) -> Checkpoints:
    """Return the content of the checkpoint files; an unreadable file counts as missing."""
    folder = str(directory)  # Paths of five files cost as much as reading them.
    start_file = f"{folder}/{START_OFFSET_FILE}"
    start = _rows(start_file)
    point = _rows(f"{folder}/{RECOVERY_POINT_FILE}")
    clean = _rows(f"{folder}/{CLEAN_SHUTDOWN_FILE}")
    cleaned = _rows(f"{folder}/{CLEANER_OFFSET_FILE}") or [[0]]
    seals, seals_are_whole = read_seals(directory / SEGMENT_FILE)
    return Checkpoints(
        log_start_offset=start[0][0] if start else 0,
        local_start_offset=start[0][1] if start else None if os.path.exists(start_file) else 0,  # noqa: PTH110
        recovery_point=point[0][0] if point else None,
        epochs=_rows(f"{folder}/{LEADER_EPOCH_FILE}"),
        seals=seals,
        seals_are_whole=seals_are_whole,
        clean_end=clean[0] if clean else None,
        cleaned_up_to=cleaned[0][0],
    )


def _rows(path: str) -> list[list[int]] | None:
    try:
        return read_checkpoint(path)
    except CorruptCheckpoint:
        # All these files save work or can be rebuilt from the batches, except the start offset,
        # which is also in the metadata store.
        return None
