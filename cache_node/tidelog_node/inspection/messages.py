"""The messages between a node and its inspection worker. Each job is followed by its batches.

Those of jobs that work with schemas are in ``schema_messages``, which most nodes do not need.
Named tuples: instances of compiled classes could not be sent to a process that runs the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.config import TopicConfig
from tidelog_core.errors import InvalidRecord
from tidelog_core.records.batch import BatchHeader

Problem = tuple[int, str]  # the record's index in the batch, and its fault


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


class SchemaUse(NamedTuple):
    """A schema that records of a batch use, and the first such record."""

    part: str
    schema_id: int  # 0: the records have its guid
    indexes: list[int]
    guid: str = ""


class FramesJob(NamedTuple):
    """Find the schemas of a batch's records."""

    size_bytes: int
    parts: tuple[str, ...]


class FramesFound(NamedTuple):
    """The schemas, and the records that name none."""

    uses: list[SchemaUse]
    problems: list[Problem]
    largest_bytes: int  # of the keys and values


class RecordsRefused(InvalidRecord):
    """Records do not have the schemas that their topic requires."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0][1] if problems else "schemas are missing"
        super().__init__(
            f"records do not fit the topic's schemas: {first}",
            record_indexes=[index for index, _ in problems],
        )
        self.record_messages = [message for _, message in problems]

    def __reduce__(self) -> tuple[type[RecordsRefused], tuple[list[Problem]]]:
        """Pickle the constructor's arguments, to send it to another process."""
        problems = list(zip(self.record_indexes, self.record_messages, strict=True))
        return type(self), (problems,)


class SchemaBegan(NamedTuple):
    """The schema that a process works with from now on: the message before it may end."""

    schema_id: int


Job = CheckJob | SearchJob | FramesJob
Found = tuple[int, int] | None  # timestamp and offset
