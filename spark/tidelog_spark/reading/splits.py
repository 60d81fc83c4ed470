"""The work of one task: the values that the plan hands to Spark's tasks.

Tasks run in other Python processes, which import neither the planning nor the metadata's records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.log.values import AbortedTransaction


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches of one object, and the valid offsets in them.

    A slice with a timestamp is a single batch. ``from_timestamp_ms``: rows before the first
    one at or after this time are skipped. ``until_timestamp_ms``: rows from the first one at
    or after this time on are skipped.
    """

    object_key: str
    position: int  # bytes
    size_bytes: int
    start_offset: int
    end_offset: int  # exclusive
    from_timestamp_ms: int | None = None
    until_timestamp_ms: int | None = None
    crc32c: int | None = None  # of the bytes; ``None``: only the batches have one
    # Of the first batch; ``None``: batches have their offsets in their headers.
    base_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """Offsets ``[start_offset, end_offset)`` to read from the partition's leader."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Split:
    """The work of one task: slices of one partition in offset order, or its tail."""

    topic: str
    partition: int
    slices: tuple[Slice, ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    tail: Tail | None = None
    topic_id: UUID | None = None  # the offsets' topic


class DataLost(TidelogError):
    """Requested offsets are not in the tiered log; all missing ranges are named."""

    code = ErrorCode.offset_out_of_range

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "; ".join(problems)
            + ". To read the rest, give other offsets or the option failOnDataLoss=false"
        )
        self.problems = tuple(problems)
