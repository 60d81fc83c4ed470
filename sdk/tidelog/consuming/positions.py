"""A consumer's position in each assigned partition, and its prefetched records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from uuid import UUID

from tidelog_core.model import TopicPartition

from tidelog.consuming.fetched import Chunk
from tidelog.consuming.records import ConsumerRecord, OffsetAndMetadata
from tidelog.errors import NotAssigned, TidelogError

UNKNOWN = -1


class PartitionState:
    """The position and buffer of one assigned partition.

    ``position`` is the offset of the next record to hand out. Records are decoded one
    batch at a time: ``records[index:]`` is the rest of the current batch.
    """

    __slots__ = (
        "chunks",
        "end_offset",
        "error",
        "fetch_epoch",
        "fetch_position",
        "fetching",
        "high_watermark",
        "index",
        "is_damaged",
        "is_held",
        "is_paused",
        "last_epoch",
        "leader_epoch",
        "partition",
        "position",
        "read_replica",
        "records",
        "reset_at_s",
        "reset_timestamp",
        "retry_at_s",
        "run_end",
        "run_epoch",
        "run_size_bytes",
        "safe_position",
        "topic_id",
        "version",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.topic_id: UUID | None = None  # of the log that has the position; None: not known yet
        self.position = UNKNOWN
        self.safe_position = UNKNOWN  # The user has processed all records before it.
        self.last_epoch = UNKNOWN  # leader epoch of the last record before ``position``
        self.reset_timestamp: int | None = None  # None: start at the committed offset.
        self.is_paused = False
        self.is_held = False  # Hands out no records: about to be revoked, or not announced yet.
        self.chunks: deque[Chunk] = deque()
        self.records: list[ConsumerRecord] = []
        self.index = 0
        self.run_end = UNKNOWN  # the end offset of the current batch, which may end in a gap
        self.run_epoch = UNKNOWN  # leader epoch of the current batch
        self.run_size_bytes = 0  # of the runs that are decoded to Arrow; 0: the usual size
        self.fetch_position = UNKNOWN  # after all fetched records
        self.fetch_epoch = UNKNOWN  # leader epoch of the last record before ``fetch_position``
        self.leader_epoch = UNKNOWN  # of the leader whose log is known to contain the position
        self.version = 0  # Grows with every jump; answers to older fetches are dropped.
        self.fetching: tuple[int, int] | None = None  # the ``ticket`` of the fetch under way
        self.high_watermark = UNKNOWN
        self.end_offset = UNKNOWN  # the last known end of readable records
        self.read_replica: tuple[int, float] | None = None  # node, until this loop time
        self.retry_at_s = 0.0
        self.is_damaged = False  # Fetched bytes were no records: the next fetch waits a little.
        self.reset_at_s = -math.inf  # loop time of the last reset of a position out of range
        self.error: TidelogError | None = None  # Raised by the next poll.

    @property
    def buffered_size_bytes(self) -> int:
        """Return the size of the fetched bytes that are not yet decoded."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def is_available(self) -> bool:
        """Whether records may be handed out."""
        return not (self.is_paused or self.is_held) and self.position != UNKNOWN

    @property
    def ticket(self) -> tuple[int, int]:
        """Return the version and leader epoch that a fetch's answer must match to be used."""
        return self.version, self.leader_epoch

    def jump(self, offset: int, epoch: int = UNKNOWN) -> None:
        """Continue from the offset and drop the buffered records.

        ``epoch`` is the leader epoch of the last record before it, if that is known.
        """
        self.position = self.safe_position = self.fetch_position = offset
        self.last_epoch = self.fetch_epoch = epoch
        if epoch != UNKNOWN:
            self.leader_epoch = UNKNOWN  # No leader has confirmed the new position yet.
        self.reset_timestamp = None
        self._drop()

    def rewind(self) -> None:
        """Drop the prefetched records, to fetch them again."""
        self.fetch_position, self.fetch_epoch = self.position, self.last_epoch
        self._drop()

    def reject(self) -> None:
        """Drop the prefetched records, which are damaged: the next fetch may return valid bytes."""
        self.rewind()
        self.is_damaged = True

    def mark_validated(self, leader_epoch: int) -> None:
        """Continue under this leader: its log contains all that was fetched before."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.read_replica = None  # The new leader may name a better one.

    def forget(self, reset_timestamp: int | None) -> None:
        """Look the position up again, by timestamp or (None) by the committed offset."""
        self.jump(UNKNOWN)
        self.reset_timestamp = reset_timestamp

    def next_run(self) -> bool:
        """Decode until ``records[index:]`` has a record; return whether it has one.

        Raises the partition's error, once.
        """
        while self.index >= len(self.records):
            if not self.chunks:
                if self.error is not None:
                    error, self.error = self.error, None
                    raise error
                return False
            chunk = self.chunks[0]
            try:
                self.records, self.run_end, self.run_epoch = chunk.next_batch(self.position)
            except TidelogError:
                self.reject()
                raise
            self.index = 0
            if not chunk:
                self.chunks.popleft()
            if not self.records and self.run_end > self.position:
                self.position, self.last_epoch = self.run_end, self.run_epoch
        return True

    def take(self, record_count_max: int) -> list[ConsumerRecord]:
        """Return the next records of the current batch and advance the position past them."""
        start, end = self.index, self.index + record_count_max
        taken = self.records[start:end] if start or end < len(self.records) else self.records
        self.index = start + len(taken)
        self.position = taken[-1].offset + 1 if self.index < len(self.records) else self.run_end
        self.last_epoch = self.run_epoch
        return taken

    def to_commit(self, offset: int) -> OffsetAndMetadata:
        """Return the offset with metadata to commit.

        The epoch may be that of a record handed out after the offset. That is correct too: an
        epoch starts at one offset only, so a log that contains it contains all records before.
        """
        return OffsetAndMetadata(offset, self.last_epoch)

    def _drop(self) -> None:
        self.version += 1
        self.chunks.clear()
        self.records = []
        self.index = 0
        self.end_offset = UNKNOWN
        self.retry_at_s = 0.0
        self.error = None


class Positions:
    """The assigned partitions, in the order of their turns."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether the partition is assigned."""
        return partition in self._states

    def __iter__(self) -> Iterator[PartitionState]:
        """Yield the states, the next in turn first."""
        return iter(self._states.values())

    def __len__(self) -> int:
        """Return how many partitions are assigned."""
        return len(self._states)

    def partitions(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return frozenset(self._states)

    def get(self, partition: TopicPartition) -> PartitionState | None:
        """Return the partition's state if it is assigned."""
        return self._states.get(partition)

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return the partition's state. Raises ``NotAssigned``."""
        state = self._states.get(TopicPartition(*partition))
        if state is None:
            assigned = ", ".join(map(str, sorted(self._states))) or "none"
            raise NotAssigned(
                f"{TopicPartition(*partition)} is not assigned to this consumer; it has {assigned}"
            )
        return state

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Make these partitions the assignment; those that stay keep their state."""
        wanted = dict.fromkeys(TopicPartition(*partition) for partition in partitions)
        for partition in [p for p in self._states if p not in wanted]:
            self._states.pop(partition).version += 1
        for partition in wanted:
            if partition not in self._states:
                self._states[partition] = PartitionState(partition)

    def next_ready(self, *, may_raise: bool) -> PartitionState | None:
        """Return the next partition in turn that has a record, or None.

        Raises a partition's error, or keeps it for later unless ``may_raise``.
        """
        for state in self:
            if state.is_held or state.is_paused:
                continue
            try:
                if state.position != UNKNOWN:
                    if state.next_run():
                        return state
                elif state.error is not None:
                    error, state.error = state.error, None
                    raise error
            except TidelogError as error:
                if may_raise:
                    raise
                state.error = error
        return None

    def take(self, record_count_max: int) -> tuple[list[ConsumerRecord], list[PartitionState]]:
        """Return the next records and their partitions, whose positions advance past them.

        Raises a partition's error if no partition before it in turn has records.
        """
        records: list[ConsumerRecord] = []
        states: list[PartitionState] = []
        while len(records) < record_count_max:
            state = self.next_ready(may_raise=not records)
            if state is None:
                break
            records += state.take(record_count_max - len(records))
            if state not in states:
                states.append(state)
            if state.index >= len(state.records):
                self.rotate(state.partition)
        return records, states

    def rotate(self, partition: TopicPartition) -> None:
        """Move the partition to the end of the order: it has had its turn."""
        state = self._states.pop(partition, None)
        if state is not None:
            self._states[partition] = state
