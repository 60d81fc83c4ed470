"""Simulates many brokers that commit to the changelog at the same moment.

Every logged commit is conditional on the cluster version, so they go one after the other:
``DynamoDbMetadataStore._commit_logged`` reads the version where it has lost, waits
(``turn_delay_s_max``) and tries again, 60 times at most. A transaction that comes while another
holds the item is turned away by DynamoDB (TransactionConflict) and sent again after a pause
that doubles. A poll of the changelog tells a broker the version too.

All of this with the product's own constants; latencies are assumptions. A transaction holds
its items for the last half of its latency, and what fails is charged like what succeeds.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.dynamodb import (
    ATTEMPTS_MAX,
    DELAY_FIRST,
    DELAY_MAX,
    turn_delay_s_max,
)
from tidelog_core.replication.election_coordinators import STEP_IN_DELAY_MS
from tidelog_core.replication.leases import LeaseTimes
from tidelog_node.membership.peer_watch import READINGS_PER_RENEWAL

POLL_S = NodeConfig().metadata_poll_interval_ms / 1000
NOTICED_WITHIN_S = LeaseTimes().renew_ms / 1000 / READINGS_PER_RENEWAL
HELD = 0.5  # share of a transaction's latency in which others are turned away


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of all commits."""

    written: int
    given_up: int
    transactions: int  # sent, failed ones included
    version_reads: int
    last_at_s: float  # after the first one was wanted
    median_s: float  # of a commit, from being wanted to being written
    slowest_s: float


@dataclass(slots=True)
class _Writer:
    """One broker; within it commits take turns."""

    wanted_at: list[float]
    polls_from: float  # and every POLL_S from then on
    guess: int | None = 0  # the version that it believes to be the newest
    losses: int = 0  # of the present commit
    conflicts: int = 0  # of the present transaction


class _Simulation:
    """The version's item and those who want it, one event after the other."""

    def __init__(self, *, latency_s: float, read_latency_s: float, seed: int) -> None:
        self._latency_s = latency_s
        self._read_latency_s = read_latency_s
        self.chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now = 0.0
        self._held_until = 0.0
        self.written_at: list[float] = []  # its length is the cluster version
        self.took: list[float] = []
        self.transactions = self.version_reads = self.given_up = 0

    def run(self, writers: Sequence[_Writer]) -> None:
        """Go on until every commit is written or given up."""
        for writer in writers:
            self._at(writer.wanted_at[0], partial(self._begin, writer))
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._count), action))

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._at(self._now + delay_s, action)

    def _begin(self, writer: _Writer) -> None:
        if writer.guess is None:
            self.version_reads += 1
            self._after(self._read_latency_s, partial(self._read, writer))
            return
        polled_at = self._now - (self._now - writer.polls_from) % POLL_S
        polled = bisect.bisect_right(self.written_at, polled_at)
        writer.guess = max(writer.guess, polled)
        self._send(writer)

    def _read(self, writer: _Writer) -> None:
        writer.guess = len(self.written_at)
        self._send(writer)

    def _send(self, writer: _Writer) -> None:
        self.transactions += 1
        self._after(self._latency_s * (1 - HELD), partial(self._arrive, writer))

    def _arrive(self, writer: _Writer) -> None:
        if self._now < self._held_until:
            writer.conflicts += 1
            if writer.conflicts >= ATTEMPTS_MAX:
                self._end(writer, is_written=False)
                return
            longest = min(DELAY_MAX, DELAY_FIRST * 2 ** min(writer.conflicts, 10))
            self._after(self.chance.uniform(0, longest), partial(self._send, writer))
        elif writer.guess != len(self.written_at):
            writer.guess, writer.conflicts = None, 0
            writer.losses += 1
            if writer.losses >= ATTEMPTS_MAX:
                self._end(writer, is_written=False)
                return
            pause = self._latency_s * HELD + self.chance.uniform(0, turn_delay_s_max(writer.losses))
            self._after(pause, partial(self._begin, writer))
        else:
            self._held_until = self._now + self._latency_s * HELD
            self._at(self._held_until, partial(self._end, writer, is_written=True))

    def _end(self, writer: _Writer, *, is_written: bool) -> None:
        wanted_at = writer.wanted_at.pop(0)
        if is_written:
            self.written_at.append(self._now)
            writer.guess = len(self.written_at)
            self.took.append(self._now - wanted_at)
        else:
            self.given_up += 1
        writer.losses = writer.conflicts = 0
        if writer.wanted_at:
            self._at(max(self._now, writer.wanted_at[0]), partial(self._begin, writer))


def simulate(
    wanted: Sequence[Sequence[float]], *, latency_s: float, read_latency_s: float, seed: int
) -> Outcome:
    """Return what becomes of the commits that each broker wants at those times, seconds."""
    run = _Simulation(latency_s=latency_s, read_latency_s=read_latency_s, seed=seed)
    writers = [
        _Writer(sorted(times), polls_from=run.chance.uniform(-POLL_S, 0))
        for times in wanted
        if times
    ]
    first = min((writer.wanted_at[0] for writer in writers), default=0.0)
    run.run(writers)
    took = sorted(run.took)
    return Outcome(
        written=len(took),
        given_up=run.given_up,
        transactions=run.transactions,
        version_reads=run.version_reads,
        last_at_s=run.written_at[-1] - first if took else 0.0,
        median_s=took[len(took) // 2] if took else 0.0,
        slowest_s=took[-1] if took else 0.0,
    )


def burst(
    commits_each: Sequence[int], *, latency_s: float, read_latency_s: float, seed: int
) -> Outcome:
    """Return what becomes of brokers that find out about the same loss.

    Their readings of the leases are up to half a second apart.
    """
    chance = random.Random(seed)
    noticed = [chance.uniform(0, NOTICED_WITHIN_S) for _ in commits_each]
    return simulate(
        [[at] * count for at, count in zip(noticed, commits_each, strict=True)],
        latency_s=latency_s,
        read_latency_s=read_latency_s,
        seed=seed,
    )


def lost_zone(
    commits: int,
    *,
    idle: int = 0,
    writing: int = 1,
    others_per_s: float,
    latency_s: float,
    read_latency_s: float,
    seed: int,
) -> Outcome:
    """Return what becomes of the commits of the one broker that writes for all.

    See ``election_coordinators``. The first ``idle`` coordinators write nothing, and each after
    them steps in a delay later. More than one ``writing`` is the worst case: none of them sees the
    others get on, and each writes everything. Others write at the same time. The slowest commit
    is counted from when its writer steps in.
    """
    chance = random.Random(seed)
    step_in_s = STEP_IN_DELAY_MS / 1000
    seconds = idle * step_in_s + commits * writing * latency_s
    others = [[chance.uniform(0, seconds)] for _ in range(round(others_per_s * seconds))]
    coordinators = [[(idle + place) * step_in_s] * commits for place in range(writing)]
    return simulate(
        [*coordinators, *others],
        latency_s=latency_s,
        read_latency_s=read_latency_s,
        seed=seed,
    )


def sustained(
    per_s: float,
    writers: int,
    *,
    seconds: float,
    latency_s: float,
    read_latency_s: float,
    seed: int,
) -> Outcome:
    """Return what becomes of commits that come at random at that rate, spread over the brokers."""
    chance = random.Random(seed)
    wanted: list[list[float]] = [[] for _ in range(writers)]
    now = chance.expovariate(per_s)
    while now < seconds:
        wanted[chance.randrange(writers)].append(now)
        now += chance.expovariate(per_s)
    return simulate(wanted, latency_s=latency_s, read_latency_s=read_latency_s, seed=seed)
