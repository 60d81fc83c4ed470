"""Compaction of a log in this process, step by step as a node does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidelog_core.compaction.cleaner import build_offset_map, clean_groups, plan_cleaning
from tidelog_core.compaction.rewrite import DeleteRule
from tidelog_core.log.cleaned_segments import CleanedSegment
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.batch import Record, decode_records, iter_headers
from tidelog_core.records.control import ControlType, parse_control_type

from tests.support.clock import NOW_MS
from tests.support.log_building import content_of, open_log

AMPLE_BYTES = 2**20
SETTINGS = {"segment_bytes": 400, "cleanup_policy": ("compact",), "index_interval_bytes": 0}


def sealed_log(directory: Path, batches: list[bytes]) -> LocalLog:
    """Return a log of the batches with everything sealed and flushed."""
    log = open_log(directory, **SETTINGS)
    append_batches(log, batches)
    log.roll()
    log.flush()
    return log


def append_batches(log: LocalLog, batches: Iterable[bytes]) -> None:
    """Append as the only replica, markers and all."""
    for batch in batches:
        log.append_as_leader(bytearray(batch), leader_epoch=3, origin=AppendOrigin.COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)


def clean(
    log: LocalLog,
    *,
    now_ms: int = NOW_MS,
    map_bytes_max: int = AMPLE_BYTES,
    apart_at: int = 0,
    keeps_deletes: bool = False,
) -> int:
    """Compact all that may be, and return the end of it."""
    segments = log.segments_to_clean()
    if not segments:
        return log.cleaned_up_to
    source = log.begin_cleaning(segments)
    deletes = DeleteRule(now_ms, log.config.delete_retention_ms)
    task = plan_cleaning(
        source,
        log.config,
        deletes=None if keeps_deletes else deletes,
        map_bytes_max=map_bytes_max,
        apart_at=apart_at,
    )
    latest = build_offset_map(task, lambda _: None)
    for group in clean_groups(task, latest, lambda _: None):
        if group.cleaned is not None:
            replace_segments(log, source, group.cleaned)
    log.end_cleaning(source, latest.end_offset)
    return latest.end_offset


def replace_segments(log: LocalLog, source: CleaningSource, cleaned: CleanedSegment) -> None:
    """Replace segments with the compacted one at once, on this thread."""
    swap = log.begin_replacing(source, cleaned)
    while not swap.is_done:
        swap.run()
        log.go_on_replacing(swap)


def batches_of(log: LocalLog) -> list[bytes]:
    """Return all local batches."""
    content = content_of(log)
    return [
        content[position : position + header.size_bytes]
        for position, header in iter_headers(content)
    ]


def offsets_of(log: LocalLog) -> list[int]:
    """Return the offsets of all local records."""
    return [record.offset for batch in batches_of(log) for record in decode_records(batch)]


def committed_records_of(log: LocalLog) -> list[Record]:
    """Return the records that a ``read_committed`` consumer gets.

    Aborted transactions are filtered as Kafka's clients do it: each begins at its first
    offset and ends at the next abort marker of its producer.
    """
    records: list[Record] = []
    offset = log.local_log_start_offset
    while offset < log.last_stable_offset:
        read = log.read(offset, max_bytes=2**30, up_to=log.last_stable_offset, include_aborted=True)
        if read.slice is None:
            break
        part = read.slice
        content = os.pread(part.file.fileno(), part.size_bytes, part.position)
        to_begin = sorted(read.aborted_transactions, key=lambda one: one.first_offset)
        aborting: set[int] = set()  # producers
        for position, header in iter_headers(content):
            offset = header.next_offset
            while to_begin and to_begin[0].first_offset <= header.last_offset:
                aborting.add(to_begin.pop(0).producer_id)
            if header.is_control:
                if is_abort_marker(content, position):
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records += decode_records(content, position)
    return records


def is_abort_marker(content: bytes, position: int) -> bool:
    """Whether the control batch ends a transaction that was aborted."""
    return any(
        parse_control_type(record.key) is ControlType.ABORT
        for record in decode_records(content, position)
    )


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> Iterator[None]:
    """Call ``before`` ahead of everything that changes a name or makes something durable."""
    is_inside = False

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            nonlocal is_inside
            if not is_inside:
                is_inside = True
                before()
                is_inside = False
            return real(*arguments, **named)

        patch.setattr(os, name, call)

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "fsync", "ftruncate", "mkdir", "pwrite"):
            watch(name)
        yield
