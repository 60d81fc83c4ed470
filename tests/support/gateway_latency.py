"""How long acks of a gateway's producers wait, by the decisions of two owners and published times.

    sequential   append → gateway's object is committed → the leader reads it → reference → leader's
                 object is committed
    overlapped   the reference is noted when the gateway's object is committed, and read meanwhile
    read first   the reference is noted when it was read, and put as soon as if it were overlapped:
                 what a leader could gain that has read whatever it refers to
    early        the reference is noted when the gateway's first PUT begins, as the design has it:
                 what a leader could gain that has to make references void

Reads end in the order of the gateway's chain. The leader's chain may have appends of its own. Time
is virtual, PUTs and reads take what ``StoreLatency`` draws.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from uuid import UUID

from tidelog_core.diskless.chain import chain_writer
from tidelog_core.diskless.chain.chain_writer import ChainWriter, PutOutcome, WriterLimits
from tidelog_core.diskless.chain.noted_ranges import ForeignRange, NotedRange
from tidelog_core.diskless.wal.build import ForeignSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.header import WalHeader, WalKind
from tidelog_core.diskless.wal.rows import SliceRow
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain

from tests.support.chain_latency import Latencies, StoreLatency

GATEWAY, LEADER = ChainName(1, UUID(int=1)), ChainName(2, UUID(int=2))
PARTITION, OWN = PartitionName(UUID(int=3), 0), PartitionName(UUID(int=3), 1)


class Path(Enum):
    """When the leader notes the reference."""

    SEQUENTIAL = "sequential"
    OVERLAPPED = "overlapped"
    READ_FIRST = "read first"
    EARLY = "early"


class _Time:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, delay_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_ms, next(self._order), act))

    def run(self) -> None:
        while self._queue:
            self.now, _, act = heapq.heappop(self._queue)
            act()


class _Chain:
    """One owner, whose objects are built at once."""

    def __init__(
        self,
        time: _Time,
        name: ChainName,
        limits: WriterLimits,
        store: StoreLatency,
        on_committed: Callable[[chain_writer.Committed], None],
        on_built: Callable[[int, Sequence[int]], None] = lambda _, __: None,
    ) -> None:
        """``on_built`` gets an object's sequence, and the numbers of its foreign slices."""
        self.writer = ChainWriter(name, now_ms=0.0, limits=limits)
        self.puts = self.in_flight_max = 0
        self._time, self._store, self._on_committed = time, store, on_committed
        self._on_built = on_built
        self._tick_at = math.inf

    def carry_out(self, decisions: list[chain_writer.Decision]) -> None:
        for decision in decisions:
            match decision:
                case chain_writer.BuildObject(sequence, _, _, content):
                    header = WalHeader(
                        WalKind.DATA, 0, b"", self.writer.name, 0, sequence, 0, 0, 0, 0, 0, sequence
                    )
                    # First, because another object may be built within the next call.
                    self._on_built(sequence, [part.number for part in content.foreign])
                    self.carry_out(self.writer.on_built(sequence, header, self._time.now))
                case chain_writer.PutObject():
                    self._put(decision)
                case chain_writer.Committed():
                    self._on_committed(decision)
        in_flight = self.writer.next_sequence - self.writer.committed_end
        self.in_flight_max = max(self.in_flight_max, in_flight)
        delay_ms = self.writer.delay_ms(self._time.now)
        if delay_ms is not None and self._time.now + delay_ms + 0.001 < self._tick_at:
            self._tick_at = self._time.now + delay_ms + 0.001
            self._time.after(delay_ms + 0.001, self._tick)

    def _put(self, put: chain_writer.PutObject) -> None:
        self.puts += 1
        self._time.after(
            self._store.draw(),
            lambda: self.carry_out(self.writer.on_put(*put, PutOutcome.STORED, self._time.now)),
        )

    def _tick(self) -> None:
        if self._time.now >= self._tick_at:
            self._tick_at = math.inf
            self.carry_out(self.writer.tick(self._time.now))


class _Run:
    def __init__(
        self, limits: WriterLimits, puts: StoreLatency, gets: StoreLatency, path: Path
    ) -> None:
        self.time = _Time()
        self._path = path
        self.waits: list[float] = []
        self._gets = gets
        self._sent: list[float] = []  # by the slice's number, which is its offset
        self._acked = 0
        self._stored_end = self._read_end = 0  # of references, and of records
        self._own_end = 0
        self._read_until = 0.0  # objects are appended in order
        self.gateway = _Chain(
            self.time, GATEWAY, limits, puts, self._on_gateway, self._on_gateway_built
        )
        self.leader = _Chain(self.time, LEADER, limits, puts, self._on_leader)
        for name in (PARTITION, OWN):
            self.leader.writer.enter(name, (EpochChain(0, LEADER, 0),), end_offset=0)

    def append(self, size_bytes: int, every_ms: float, until_ms: float) -> None:
        number = len(self._sent)
        self._sent.append(self.time.now)
        foreign = ForeignRange(PARTITION, number, size_bytes)
        self.gateway.carry_out(self.gateway.writer.note_foreign(foreign, self.time.now))
        if self.time.now < until_ms:
            self.time.after(every_ms, lambda: self.append(size_bytes, every_ms, until_ms))

    def append_own(self, size_bytes: int, every_ms: float, until_ms: float) -> None:
        at = self._own_end
        self._own_end += 1
        noted = NotedRange(OWN, 0, at, at + 1, size_bytes)
        self.leader.carry_out(self.leader.writer.note(noted, self.time.now))
        if self.time.now < until_ms:
            self.time.after(every_ms, lambda: self.append_own(size_bytes, every_ms, until_ms))

    def _on_gateway_built(self, sequence: int, numbers: Sequence[int]) -> None:
        if self._path is Path.EARLY:
            self._refer(sequence, numbers)

    def _on_gateway(self, committed: chain_writer.Committed) -> None:
        for sequence, content in committed.contents:
            numbers = [part.number for part in content.foreign]
            if self._path is Path.OVERLAPPED:
                self._refer(sequence, numbers)
            self._read_until = max(self._read_until, self.time.now + self._gets.draw())
            committed_ms = self.time.now
            self.time.after(
                self._read_until - committed_ms,
                lambda s=sequence, n=numbers, at=committed_ms: self._on_read(s, n, at),  # type: ignore[misc]
            )

    def _on_read(self, sequence: int, numbers: Sequence[int], committed_ms: float) -> None:
        if self._path is Path.SEQUENTIAL:
            self._refer(sequence, numbers)
        elif self._path is Path.READ_FIRST:
            writer = self.leader.writer
            for number in numbers:
                writer._waiting.add_reference(_reference(sequence, number), committed_ms)
            self.leader.carry_out(writer.tick(self.time.now))
        self._read_end = numbers[-1] + 1
        self._ack()

    def _refer(self, sequence: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            reference = _reference(sequence, number)
            self.leader.carry_out(
                self.leader.writer.note_reference(
                    reference, self.time.now, gateway_committed_end=sequence + 1
                )
            )

    def _on_leader(self, committed: chain_writer.Committed) -> None:
        self._stored_end = max(self._stored_end, committed.ends.get(PARTITION, 0))
        self._ack()

    def _ack(self) -> None:
        end = min(self._stored_end, self._read_end)
        self.waits += [self.time.now - at for at in self._sent[self._acked : end]]
        self._acked = max(self._acked, end)


def _reference(sequence: int, number: int) -> ForeignSlice:
    row = SliceRow(PARTITION.topic_id.bytes, 0, -1, -1, 1, 0, 112, 1, 1, 0, 1)
    return ForeignSlice(GATEWAY, sequence, 0, number, row, ())


def measure_gateway(
    limits: WriterLimits,
    puts: StoreLatency,
    gets: StoreLatency,
    append_bytes: int,
    append_ms: float,
    seconds: float,
    *,
    leads_others: bool,
    path: Path,
) -> Latencies:
    """Append for so long by a gateway, and return how long the acks took, and the leader's PUTs.

    ``leads_others``: the leader's own clients append as much to another partition.
    """
    run = _Run(limits, puts, gets, path)
    run.append(append_bytes, append_ms, seconds * 1_000)
    if leads_others:
        run.append_own(append_bytes, append_ms, seconds * 1_000)
    run.time.run()
    waits = sorted(run.waits)
    assert len(waits) == len(run._sent)
    at = [waits[int(len(waits) * part)] for part in (0.5, 0.99, 0.999)]
    leader = run.leader
    return Latencies(*at, leader.writer.next_sequence, leader.puts, leader.in_flight_max)
