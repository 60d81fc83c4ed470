"""Checks one tiered segment: its objects against its metadata and against each other."""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from tidelog_core.errors import CorruptObject, TidelogError
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.objects.download import download
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import Buffer
from tidelog_core.restoration.survey import describe
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import verify_segment
from tidelog_core.tier.keys import SegmentKeys


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it must be, or that is left over."""

    partition: TopicPartition | None  # None: of no one partition
    object: str  # the object's key, or the metadata item's if the item is wrong
    problem: str
    is_leftover: bool = False  # nothing is lost or wrong: the scrub removes it


async def check_segment(
    objects: ObjectStore,
    name: TopicPartition,
    segment: SegmentMeta,
    keys: SegmentKeys,
    *,
    on_bytes: Callable[[int], None],
    on_log: Callable[[Buffer], None] | None = None,
) -> tuple[IndexFile | None, list[Problem]]:
    """Return the index (None if it is damaged) and the problems of the segment.

    ``on_bytes`` is called with the sizes of the reads of the log. ``on_log`` gets the whole log, on
    a thread, if no problem was found, and must not keep it.
    """
    problems: list[Problem] = []
    index: IndexFile | None = None
    try:
        index = await read_index(objects, segment, keys.index)
    except TidelogError as error:
        problems.append(Problem(name, keys.index, describe(error)))
    try:
        await _check_log(objects, segment, keys.log, index, on_bytes=on_bytes, on_log=on_log)
    except TidelogError as error:
        problems.append(Problem(name, keys.log, describe(error)))
    return index, problems


async def read_index(objects: ObjectStore, segment: SegmentMeta, key: str) -> IndexFile:
    """Return the segment's index, which agrees with its metadata.

    Raises ``CorruptObject``, ``ObjectNotFound`` and the errors of the store.
    """
    data = await objects.get(key)
    if len(data) != segment.index_size_bytes:
        raise CorruptObject(key, f"it has {len(data)} bytes instead of {segment.index_size_bytes}")
    index = IndexFile.parse(data, key=key)
    for what, found, expected in (
        ("topic id", index.topic_id, segment.topic_id),
        ("partition", index.partition, segment.partition),
        ("segment id", index.segment_id, segment.segment_id),
        ("base offset", index.base_offset, segment.base_offset),
        ("end offset", index.end_offset, segment.end_offset),
        ("leader epoch", index.leader_epoch, segment.leader_epoch),
        ("size of the log", index.log_size_bytes, segment.size_bytes),
        ("greatest timestamp", index.max_timestamp_ms, segment.max_timestamp_ms),
        ("rewrite epoch", index.rewrite_epoch, segment.rewrite_epoch),
        ("chained hash", index.chained_hash.hex(), segment.chained_hash),
    ):
        if found != expected:
            raise CorruptObject(key, f"its {what} is {found}, the metadata store says {expected}")
    return index


async def _check_log(
    objects: ObjectStore,
    segment: SegmentMeta,
    key: str,
    index: IndexFile | None,
    *,
    on_bytes: Callable[[int], None],
    on_log: Callable[[Buffer], None] | None,
) -> None:
    """Check the segment's bytes; without an index only that they are all there."""
    found = (await objects.head(key)).size_bytes
    if found != segment.size_bytes:
        raise CorruptObject(key, f"it has {found} bytes instead of {segment.size_bytes}")
    if index is None:
        on_bytes(segment.size_bytes)
        return
    # A segment may be larger than memory, so it is downloaded to an unnamed file.
    with tempfile.TemporaryFile(prefix="tidelog-verify-") as file:
        await download(objects, key, segment.size_bytes, file, on_bytes=on_bytes)
        await asyncio.to_thread(_verify_file, key, file, segment.size_bytes, index, on_log)


def _verify_file(
    key: str,
    file: IO[bytes],
    size_bytes: int,
    index: IndexFile,
    on_log: Callable[[Buffer], None] | None,
) -> None:
    found = os.fstat(file.fileno()).st_size
    if found != size_bytes:
        raise CorruptObject(key, f"{found} bytes could be read instead of {size_bytes}")
    if size_bytes == 0:
        verify_segment(key, b"", index)
        if on_log is not None:
            on_log(b"")
        return
    with mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) as log:
        verify_segment(key, log, index)
        if on_log is not None:
            on_log(log)
