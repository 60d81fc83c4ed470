"""The owner's side of a chain: events in, decisions out, without clock, socket or bytes.

1. ``enter`` lets a partition into the chain, once its item names the chain and the epoch.
2. ``note`` says that a local log has grown. ``tick`` decides when the next object is built:
   when the buffer is full, when its oldest bytes have waited for the interval, or soon if
   nothing is in flight and a PUT is allowed.
3. An object is put if absent, and again with the same bytes if there is no answer in time, for as
   long as it takes. If the key is taken, the header there decides: ours, or the chain is sealed.
4. Objects whose predecessors all exist are committed: ``Committed`` names the partitions' ends.

The owner repeats a PUT until the object is stored, or until another node has sealed its sequence;
then the owner is deposed. At most ``in_flight_max`` sequences from the committed end on have
objects, so an heir reads no more headers than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidelog_core.diskless.chain.chain_object import ChainObject
from tidelog_core.diskless.chain.noted_ranges import (
    ForeignRange,
    NotedRange,
    NotedRanges,
    ObjectContent,
    partition_of,
)
from tidelog_core.diskless.chain.put_pace import PaceLimits, PutPace
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.chain.steady_time import SteadyTime
from tidelog_core.diskless.wal.build import ForeignSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.diskless.wal.header import NO_HEADER_CRC, WalHeader, WalKind
from tidelog_core.diskless.wal.rows import EpochRow
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

ATTEMPTS_AT_ONCE_MAX = 2  # a PUT and its hedge


class PutOutcome(Enum):
    """The answer to a PUT if absent."""

    STORED = "stored"
    TAKEN = "taken"  # 412, or 409: something has the key, or is about to
    THROTTLED = "throttled"  # 503: nothing was written
    UNKNOWN = "unknown"  # timeout, lost connection: it may be written, now or later


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """The settings of an owner."""

    flush_bytes: int = 4 * 1024 * 1024  # diskless.append.buffer.max.bytes
    flush_ms: float = 100.0  # diskless.append.commit.interval.ms
    idle_flush_ms: float = 10.0
    gather_ms: float = 0.0  # after a commit: the clients that it acknowledged send more
    # How long the node adds up what its logs get before it is noted. It is noted as of its
    # beginning, so objects are built no later. Each time costs as much as some appends.
    note_ms: float = 0.0
    reference_flush_ms: float = 20.0  # Their producers have waited for the gateway's object.
    # While nothing can be stored, much waits. In one object it might never be stored in time.
    object_bytes_max: int = 8 * 1024 * 1024
    buffer_bytes_max: int = 256 * 1024 * 1024  # diskless.buffer.max.bytes
    pace: PaceLimits = field(default_factory=PaceLimits)


class BuildObject(NamedTuple):
    """Build the object from local logs; then ``on_built``, or ``on_build_failed``."""

    sequence: int
    committed_end: int
    previous_crc: int
    content: ObjectContent


class PutObject(NamedTuple):
    """Put the built object if absent, always the same bytes; then ``on_put``."""

    sequence: int
    attempt: int


class ReadHeader(NamedTuple):
    """Read the header at the sequence; then ``on_header``."""

    sequence: int


class Committed(NamedTuple):
    """Everything below the end is committed: move high watermarks, release acks, drop bytes."""

    committed_end: int
    contents: tuple[tuple[int, ObjectContent], ...]  # by sequence, what was committed just now
    ends: dict[PartitionName, int]


class Deposed(NamedTuple):
    """The chain is not ours any more: nothing from this sequence on will ever be committed."""

    sequence: int
    reason: str


Decision = BuildObject | PutObject | ReadHeader | Committed | Deposed


class ChainWriter:
    """One chain, from its first object until it is sealed. Used by one task."""

    def __init__(
        self,
        name: ChainName,
        *,
        now_ms: float,
        limits: WriterLimits | None = None,
        rules: ChainRules | None = None,
    ) -> None:
        self.name = name
        self.limits = limits or WriterLimits()
        self.rules = rules or ChainRules()
        self.committed_end = 0
        self.next_sequence = 0
        self.is_deposed = False
        self._time = SteadyTime(now_ms)
        self._pace = PutPace(self.limits.pace)
        self._waiting = NotedRanges(self.limits.object_bytes_max)
        self._objects: dict[int, ChainObject] = {}
        self._stored: set[int] = set()  # at or above the committed end
        self._in_flight_bytes = 0
        self._committed_ms = float("-inf")  # of the last commit
        self._previous_crc = NO_HEADER_CRC
        self._epochs: dict[PartitionName, int] = {}  # of the partitions that may be noted
        self._left: dict[PartitionName, int] = {}  # epochs that have ended here

    # -- partitions --

    def enter(
        self,
        partition: PartitionName,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int = -1,
    ) -> None:
        """Let the partition in. ``stored`` are the chains in its item; the last must be this one.

        The log must end where the epoch begins. It does not if the item was read before others
        have led. ``previous_sequence`` is that of the seal of the chain before, -1 if it was
        handed over.
        """
        current = current_chain(stored)
        if current is None or current.chain != self.name:
            raise ValueError(f"the item of {partition} does not name the chain {self.name}")
        if current.leader_epoch <= self._left.get(partition, -1):
            raise ValueError(f"{partition} has left in epoch {current.leader_epoch}: a stale item")
        if end_offset != current.first_offset:
            raise ValueError(f"{partition} ends at {end_offset}, {current} does not begin there")
        self._epochs[partition] = current.leader_epoch
        self._waiting.begin(partition, current.first_offset)
        before = stored[-2].chain if len(stored) > 1 else None
        self._waiting.add_epoch(
            EpochRow(
                topic_id=partition.topic_id.bytes,
                partition=partition.partition,
                leader_epoch=current.leader_epoch,
                first_offset=current.first_offset,
                previous_chain_id=bytes(16) if before is None else before.chain_id.bytes,
                previous_broker_id=-1 if before is None else before.broker_id,
                reserved=0,
                previous_sequence=previous_sequence,
            )
        )

    def leave(self, partition: PartitionName) -> None:
        """Take nothing more of the partition. Records noted before are still put."""
        if partition in self._epochs:
            self._left[partition] = self._epochs.pop(partition)

    def has_uncommitted(self, partition: PartitionName) -> bool:
        """Return whether something of the partition is not committed yet."""
        return self._waiting.has(partition) or any(
            partition in one.ends for one in self._objects.values()
        )

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are not committed."""
        return self._waiting.size_bytes + self._in_flight_bytes

    # -- events --

    def note(self, noted: NotedRange, now_ms: float) -> list[Decision]:
        """A local log has got these records."""
        self.add(noted, now_ms)
        return self.tick(now_ms)

    def note_foreign(self, foreign: ForeignRange, now_ms: float) -> list[Decision]:
        """A client has sent these batches of a partition that another node leads."""
        self.add_foreign(foreign, now_ms)
        return self.tick(now_ms)

    def add(self, noted: NotedRange, now_ms: float, *, waited_ms: float = 0.0) -> None:
        """Note a range that has waited for so long; call ``tick`` once all are noted."""
        self._require_entered(noted.partition, noted.leader_epoch)
        self._waiting.add(noted, self._time.advance(now_ms) - waited_ms)

    def add_foreign(self, foreign: ForeignRange, now_ms: float, *, waited_ms: float = 0.0) -> None:
        """Note a gateway's slice in the same way."""
        self._waiting.add_foreign(foreign, self._time.advance(now_ms) - waited_ms)

    def note_reference(
        self, reference: ForeignSlice, now_ms: float, *, gateway_committed_end: int
    ) -> list[Decision]:
        """A gateway has committed this slice, and the partition's log has given it offsets."""
        if not self.rules.may_refer(reference.sequence, gateway_committed_end):
            raise ValueError(
                f"the object {reference.sequence} of {reference.gateway} is not known to be"
                f" committed: its chain is known up to {gateway_committed_end}"
            )
        self._require_entered(partition_of(reference), reference.leader_epoch)
        self._waiting.add_reference(reference, self._time.advance(now_ms))
        return self.tick(now_ms)

    def put_empty_object(self, now_ms: float) -> list[Decision]:
        """Put an object without records, unless something is pending.

        A chain's last object is never collected. After this the last one that has records can be.
        """
        self._time.advance(now_ms)
        if self.is_deposed or self._objects or self._waiting.first_ms is not None:
            return []
        return [self._build()]

    def on_built(self, sequence: int, header: WalHeader, now_ms: float) -> list[Decision]:
        """The object is built. The next one can be built on it."""
        built = self._objects[sequence]
        built.header = header
        built.failures = 0
        self._previous_crc = header.crc
        return [self._put(sequence, built, self._time.advance(now_ms)), *self.tick(now_ms)]

    def on_build_failed(self, sequence: int, now_ms: float) -> list[Decision]:
        """A local file could not be read: the same object is built later.

        Its sequence is taken, so nothing behind it is committed before. Nothing of it was put.
        """
        now = self._time.advance(now_ms)
        one = self._objects.get(sequence)
        if one is None or one.header is not None or self.is_deposed:
            return []
        return self._retry_later(one, now)

    def on_put(
        self, sequence: int, attempt: int, outcome: PutOutcome, now_ms: float
    ) -> list[Decision]:
        """A PUT was answered, or given up."""
        now = self._time.advance(now_ms)
        one = self._objects.get(sequence)
        sent_ms = None if one is None else one.attempts.pop(attempt, None)
        if one is None or sent_ms is None or self.is_deposed or sequence in self._stored:
            return []
        match outcome:
            case PutOutcome.STORED:
                self._pace.on_answer(now - sent_ms)
                return self._on_stored(sequence, now_ms)
            case PutOutcome.TAKEN:
                self._pace.on_answer(now - sent_ms)
                return self._read_header(sequence, one)
            case PutOutcome.THROTTLED:
                self._pace.on_throttled(now)
        return self._retry_later(one, now)

    def on_header(self, sequence: int, header: WalHeader | None, now_ms: float) -> list[Decision]:
        """The header at a sequence that was taken was read; ``None`` if there is no object."""
        one = self._end_header_read(sequence)
        if one is None:
            return []
        if header is None:
            return self._retry_later(one, self._time.advance(now_ms))
        if header == one.header:
            return self._on_stored(sequence, now_ms)
        self.is_deposed = True
        reason = "sealed" if header.kind is WalKind.SEAL else f"taken by {header.chain}"
        return [Deposed(sequence, reason)]

    def on_header_unreadable(self, sequence: int, now_ms: float) -> list[Decision]:
        """The header at a sequence that was taken could not be read: the PUT is repeated later."""
        one = self._end_header_read(sequence)
        return [] if one is None else self._retry_later(one, self._time.advance(now_ms))

    def tick(self, now_ms: float) -> list[Decision]:
        """Time has passed, or something has changed."""
        if self.is_deposed:
            return []
        now = self._time.advance(now_ms)
        decisions = list(self._due_repetitions(now))
        if self._may_build() and self._flush_delay_ms(now) == 0:
            decisions.append(self._build())
        return decisions

    def delay_ms(self, now_ms: float) -> float | None:
        """Return after how many milliseconds ``tick`` has something to do, ``None`` for never."""
        if self.is_deposed:
            return None
        now = self._time.advance(now_ms)
        due = [
            max(0.0, at - now)
            for one in self._objects.values()
            for at in (one.hedge_ms, one.retry_ms)
            if at is not None
        ]
        if self._may_build() and (flush := self._flush_delay_ms(now)) is not None:
            due.append(flush)
        return min(due, default=None)

    def _require_entered(self, partition: PartitionName, leader_epoch: int) -> None:
        if self._epochs.get(partition) != leader_epoch:
            raise ValueError(f"{partition} is not in the chain in epoch {leader_epoch}")

    # -- flushing --

    def _may_build(self) -> bool:
        limit = self.committed_end + self._pace.in_flight_max
        is_building = any(one.header is None for one in self._objects.values())
        return not is_building and self.next_sequence < limit

    def _flush_delay_ms(self, now: float) -> float | None:
        """Return how long the noted ranges still have to wait, ``None`` if there are none."""
        waiting = self._waiting
        if waiting.first_ms is None:
            return None
        if waiting.size_bytes >= self.limits.flush_bytes:
            return 0.0
        is_idle = not self._objects
        wait_ms = self.limits.idle_flush_ms if is_idle else self.limits.flush_ms
        due_ms = waiting.first_ms + wait_ms
        if is_idle:
            due_ms = max(due_ms, self._committed_ms + self.limits.gather_ms)
        if waiting.first_reference_ms is not None:
            due_ms = min(due_ms, waiting.first_reference_ms + self.limits.reference_flush_ms)
        return max(0.0, due_ms - now, self._pace.token_delay_ms(now))

    def _build(self) -> BuildObject:
        content = self._waiting.take()
        sequence = self.next_sequence
        self.next_sequence += 1
        one = ChainObject(content, self.committed_end, self._previous_crc)
        self._objects[sequence] = one
        self._in_flight_bytes += content.size_bytes
        return self._build_order(sequence, one)

    def _build_order(self, sequence: int, one: ChainObject) -> BuildObject:
        return BuildObject(sequence, one.committed_end, one.previous_crc, one.content)

    # -- putting --

    def _put(self, sequence: int, one: ChainObject, now: float) -> PutObject:
        one.last_attempt += 1
        one.attempts[one.last_attempt] = now
        one.retry_ms = None
        delay_ms = self._pace.hedge_delay_ms(now)
        if delay_ms is None or len(one.attempts) == ATTEMPTS_AT_ONCE_MAX:
            one.hedge_ms = None
        else:
            one.hedge_ms = now + delay_ms
        if one.last_attempt == 1:  # Paid here, a hedge would cost the next object its flush.
            self._pace.take_token(now)
        return PutObject(sequence, one.last_attempt)

    def _due_repetitions(self, now: float) -> Iterable[Decision]:
        """Yield the builds and PUTs to repeat now: retries and hedges whose time has come."""
        for sequence, one in self._objects.items():
            if sequence in self._stored or one.is_reading:
                continue
            if one.header is None:
                if one.retry_ms is not None and one.retry_ms <= now:
                    one.retry_ms = None
                    yield self._build_order(sequence, one)
            elif any(at is not None and at <= now for at in (one.hedge_ms, one.retry_ms)):
                yield self._put(sequence, one, now)

    def _retry_later(self, one: ChainObject, now: float) -> list[Decision]:
        """Repeat the build or PUT after a while, unless an answer is still under way."""
        one.failures += 1
        if not one.attempts and not one.is_reading and one.retry_ms is None:
            one.hedge_ms = None
            one.retry_ms = now + self._pace.retry_delay_ms(one.failures)
        return []

    def _read_header(self, sequence: int, one: ChainObject) -> list[Decision]:
        if sequence in self._stored or one.is_reading:
            return []
        one.is_reading = True
        one.hedge_ms = one.retry_ms = None
        return [ReadHeader(sequence)]

    def _end_header_read(self, sequence: int) -> ChainObject | None:
        """Note that the read has ended; return the object if its outcome is still open."""
        one = self._objects.get(sequence)
        if one is None or self.is_deposed or not one.is_reading:
            return None
        one.is_reading = False
        return None if sequence in self._stored else one

    # -- committing --

    def _on_stored(self, sequence: int, now_ms: float) -> list[Decision]:
        one = self._objects[sequence]
        one.hedge_ms = one.retry_ms = None
        self._stored.add(sequence)
        end = self.rules.committed_end(self.committed_end, self._stored)
        decisions: list[Decision] = []
        if end > self.committed_end:
            decisions.append(self._commit(end))
            self._committed_ms = self._time.advance(now_ms)
        return [*decisions, *self.tick(now_ms)]

    def _commit(self, end: int) -> Committed:
        contents: list[tuple[int, ObjectContent]] = []
        ends: dict[PartitionName, int] = {}
        for sequence in range(self.committed_end, end):
            one = self._objects.pop(sequence, None)
            self._stored.discard(sequence)
            if one is not None:
                contents.append((sequence, one.content))
                ends |= one.ends
                self._in_flight_bytes -= one.content.size_bytes
        self.committed_end = end
        return Committed(end, tuple(contents), ends)
