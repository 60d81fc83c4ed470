"""Writes a partition's snapshot files at every roll and close, and reads them at open.

With a snapshot at offset N, the producers' state is rebuilt from the batches after N. If
one is missing or damaged, the one before it is used, or the empty state at the local log
start. That only takes longer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.checkpoint import read_file
from tidelog_core.log.paths import SNAPSHOT_SUFFIX, parse_segment_name, segment_path
from tidelog_core.log.producers.producer_snapshot import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.segments.batch_scan import read_marker, scan_file
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.values import AbortedTransaction, AppendOrigin
from tidelog_core.records.batch import BatchHeader, Buffer


def snapshot_path(directory: Path, offset: int) -> Path:
    """Return the path of the snapshot at ``offset``."""
    return segment_path(directory, offset, SNAPSHOT_SUFFIX)


def write_snapshot(directory: Path, state: ProducerState) -> Path:
    """Write the snapshot at the state's end offset. Not durable: its CRC shows if it was lost."""
    path = snapshot_path(directory, state.end_offset)
    path.write_bytes(encode_snapshot(state))
    return path


def remove_snapshots(directory: Path, *, above: int) -> None:
    """Remove the snapshots at offsets greater than ``above``."""
    for offset in list(_snapshot_offsets(directory)):
        if offset > above:
            snapshot_path(directory, offset).unlink(missing_ok=True)


def remove_stray_snapshots(
    directory: Path, snapshots: Iterable[int], *, keep: Collection[int]
) -> None:
    """Remove the snapshots except those at the offsets to keep.

    Every close in order writes one at an offset within the active segment. Once that segment is
    sealed, the snapshots at its two ends suffice.
    """
    for offset in snapshots:
        if offset not in keep:
            snapshot_path(directory, offset).unlink(missing_ok=True)


def producers_at(
    directory: Path,
    segments: Sequence[LogSegment],
    offset: int,
    *,
    expiration_ms: int,
    now_ms: int,
    snapshots: Iterable[int] | None = None,
) -> ProducerState:
    """Return the producers' state at ``offset``, from a snapshot and the batches after it.

    The batches between snapshot and offset are not checked: they are below the recovery
    point or were checked before. Damaged snapshots are removed. ``snapshots`` are the offsets of
    all that there may be; ``None``: those in the directory.
    """
    start_offset = segments[0].base_offset if segments else offset
    state = _newest_snapshot(
        directory,
        start_offset,
        offset,
        expiration_ms=expiration_ms,
        snapshots=_snapshot_offsets(directory) if snapshots is None else snapshots,
    ) or ProducerState(end_offset=start_offset, expiration_ms=expiration_ms)
    state.expire(now_ms)
    for segment in segments:
        if segment.end_offset <= state.end_offset or segment.base_offset >= offset:
            continue
        for buffer, at, _, header in scan_file(segment.path, segment.size_bytes):
            if header.base_offset >= offset:
                break
            if header.base_offset >= state.end_offset:
                note_batch(state, buffer, at, header, now_ms=now_ms)
    state.end_offset = offset
    return state


def note_batch(
    state: ProducerState, buffer: Buffer, position: int, header: BatchHeader, *, now_ms: int
) -> list[AbortedTransaction]:
    """Apply a batch that is in the log. Returns the transactions that it aborts."""
    if not header.has_producer_id:
        state.end_offset = header.next_offset
        return []
    draft = state.stage(AppendOrigin.REPLICATION, now_ms=now_ms)
    try:
        marker = read_marker(buffer, position, header)
    except CorruptRecordBatch:
        marker = None
    draft.add(header, header.base_offset, marker)
    return state.commit(draft, end_offset=header.next_offset)


def _newest_snapshot(
    directory: Path,
    start_offset: int,
    offset: int,
    *,
    expiration_ms: int,
    snapshots: Iterable[int],
) -> ProducerState | None:
    usable = [candidate for candidate in snapshots if start_offset <= candidate <= offset]
    for candidate in sorted(usable, reverse=True):
        path = snapshot_path(directory, candidate)
        try:
            state = decode_snapshot(read_file(path), expiration_ms=expiration_ms)
        except FileNotFoundError:
            continue  # It went with its segment.
        except CorruptSnapshot:
            path.unlink()
            continue
        if state.end_offset == candidate:
            return state
    return None


def _snapshot_offsets(directory: Path) -> Iterator[int]:
    # Names are all that is needed.
    return snapshots_among(os.listdir(directory))  # noqa: PTH208


def snapshots_among(names: Iterable[str]) -> Iterator[int]:
    """Yield the offsets of the snapshots among these files of a log."""
    for name in names:
        parsed = parse_segment_name(name) if name.endswith(SNAPSHOT_SUFFIX) else None
        if parsed is not None and parsed[1] == SNAPSHOT_SUFFIX:
            yield parsed[0]
