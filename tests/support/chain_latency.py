"""How long acks wait for a chain, by the owner's decisions and a store's published latencies.

PUTs take a lognormal time through a median and a 99th percentile; one in a thousand takes 0.5 to
2 s more. Appends come evenly. Time is virtual.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from uuid import UUID

from tidelog_core.diskless.chain import chain_writer
from tidelog_core.diskless.chain.chain_writer import ChainWriter, PutOutcome, WriterLimits
from tidelog_core.diskless.chain.noted_ranges import NotedRange
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.header import WalHeader, WalKind
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain

NAME = ChainName(1, UUID(int=1))
PARTITION = PartitionName(UUID(int=2), 0)
_Z99 = 2.326  # the 99th percentile of a normal distribution


@dataclass(frozen=True, slots=True)
class Latencies:
    """What acks waited, in milliseconds, and the PUTs that it took."""

    p50: float
    p99: float
    p999: float
    objects: int
    puts: int
    in_flight_max: int


class StoreLatency:
    """Draws the time of one PUT."""

    def __init__(self, random: Random, median_ms: float, p99_ms: float) -> None:
        self._random, self._median_ms = random, median_ms
        self._sigma = math.log(p99_ms / median_ms) / _Z99

    def draw(self) -> float:
        time_ms = self._median_ms * math.exp(self._random.gauss(0, self._sigma))
        if self._random.random() < 0.001:
            time_ms += self._random.uniform(500, 2_000)
        return time_ms


def measure(
    limits: WriterLimits,
    store: StoreLatency,
    *,
    append_bytes: int,
    append_ms: float,
    seconds: float,
) -> Latencies:
    """Append for so long, and return how long the acks took."""
    run = _Run(limits, store)
    run.append_evenly(append_bytes, append_ms, seconds * 1_000)
    waits = sorted(run.waits)
    p50, p99, p999 = (waits[int(len(waits) * part)] for part in (0.5, 0.99, 0.999))
    return Latencies(p50, p99, p999, run.writer.next_sequence, run.puts, run.in_flight_max)


class _Run:
    def __init__(self, limits: WriterLimits, store: StoreLatency) -> None:
        self.writer = ChainWriter(NAME, now_ms=0.0, limits=limits)
        self.writer.enter(PARTITION, (EpochChain(0, NAME, 0),), end_offset=0)
        self.waits: list[float] = []
        self.puts = self.in_flight_max = 0
        self._store = store
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._appended: list[float] = []
        self._acked = 0
        self._tick_at = math.inf

    def append_evenly(self, size_bytes: int, every_ms: float, until_ms: float) -> None:
        def append() -> None:
            offset = len(self._appended)
            self._appended.append(self._now)
            noted = NotedRange(PARTITION, 0, offset, offset + 1, size_bytes)
            self._carry_out(self.writer.note(noted, self._now))
            if self._now < until_ms:
                self._at(self._now + every_ms, append)

        self._at(0.0, append)
        while self._queue:
            self._now, _, act = heapq.heappop(self._queue)
            act()

    def _at(self, time_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time_ms, next(self._order), act))

    def _carry_out(self, decisions: list[chain_writer.Decision]) -> None:
        for decision in decisions:
            match decision:
                case chain_writer.BuildObject(sequence):
                    header = WalHeader(
                        WalKind.DATA, 0, b"", NAME, 0, sequence, 0, 0, 0, 0, 0, sequence
                    )
                    self._carry_out(self.writer.on_built(sequence, header, self._now))
                case chain_writer.PutObject():
                    self.puts += 1
                    self._at(
                        self._now + self._store.draw(),
                        lambda put=decision: self._carry_out(  # type: ignore[misc]
                            self.writer.on_put(
                                put.sequence, put.attempt, PutOutcome.STORED, self._now
                            )
                        ),
                    )
                case chain_writer.Committed():
                    end = decision.ends[PARTITION]
                    self.waits += [self._now - at for at in self._appended[self._acked : end]]
                    self._acked = end
        in_flight = self.writer.next_sequence - self.writer.committed_end
        self.in_flight_max = max(self.in_flight_max, in_flight)
        delay_ms = self.writer.delay_ms(self._now)
        if delay_ms is not None and self._now + delay_ms + 0.001 < self._tick_at:
            self._tick_at = self._now + delay_ms + 0.001
            self._at(self._tick_at, self._tick)

    def _tick(self) -> None:
        if self._now >= self._tick_at:
            self._tick_at = math.inf
            self._carry_out(self.writer.tick(self._now))
