"""The messages between a node and its inspection worker. Each job is followed by its batches.

Named tuples: instances of compiled classes could not be sent to a process that runs the source.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.config import TopicConfig
from tidelog_core.records.batch import BatchHeader

from tidelog_node.inspection.schema_frames import FramesJob


class CheckJob(NamedTuple):
    """Check a client's batches, and convert them if the topic requires it."""

    size_bytes: int  # of the batches
    config: TopicConfig
    now_ms: int


class Checked(NamedTuple):
    """The batches may be appended."""

    converted: bytes | None  # None: unchanged
    headers: list[tuple[int, BatchHeader]]  # with their positions


class SearchJob(NamedTuple):
    """Find a batch's first record at or after a time and an offset."""

    size_bytes: int  # of the batch
    timestamp_ms: int | None  # None: the first record with the greatest timestamp
    start_offset: int


Job = CheckJob | SearchJob | FramesJob
Found = tuple[int, int] | None  # timestamp and offset
