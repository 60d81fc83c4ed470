"""Simulates many brokers that commit to the changelog at the same time.

Every logged commit is conditional on the cluster version, so only one at a time succeeds:
``DynamoDbMetadataStore._commit_logged`` reads the version after a lost race, waits
(``turn_delay_s_max``) and retries, at most 60 times. DynamoDB rejects a transaction that arrives
while another holds the item (TransactionConflict); it is sent again after a pause that doubles. A
broker also gets the version from its polls of the changelog.

The constants are the product's; latencies are assumptions. A transaction holds its items for the
last half of its latency, and a failed one is charged like a successful one.
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
from tidelog_core.metadata.stores.dynamodb_attempts import (
    ATTEMPTS_MAX,
    DELAY_FIRST,
    DELAY_MAX,
    turn_delay_s_max,
)
from tidelog_core.replication.leases.election_coordinators import STEP_IN_DELAY_MS
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_node.membership.peer_watch import READINGS_PER_RENEWAL

POLL_S = NodeConfig().metadata_poll_interval_ms / 1000
NOTICED_WITHIN_S = LeaseTimes().renew_ms / 1000 / READINGS_PER_RENEWAL
HELD = 0.5  # share of a transaction's latency in which others are rejected


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of all commits."""

    written: int
    given_up: int
    transactions: int  # sent, failed ones included
    version_reads: int
    last_at_s: float  # after the first commit was requested
    median_s: float  # of a commit, from its request to its write
    slowest_s: float


@dataclass(slots=True)
class _Writer:
    """One broker; its commits take turns."""

    wanted_at: list[float]
    polls_from: float  # then every POLL_S
    guess: int | None = 0  # the newest version that it has seen
    losses: int = 0  # of the current commit
    conflicts: int = 0  # of the current transaction


class _Simulation:
    """The version's item and its writers, event by event."""

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
        """Continue until every commit is written or given up."""
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
    """Return the outcome of commits requested at these times, seconds, by broker."""
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
    """Return the outcome if all brokers commit after they detect the same failure.

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
    """Return the outcome for the one broker that writes the elections of all.

    See ``election_coordinators``. The first ``idle`` coordinators write nothing, and each later one
    steps in after a further delay. More than one ``writing`` is the worst case: none of them sees
    the others' progress, and each writes everything. Other brokers commit at the same time. The
    slowest commit is timed from the moment when its writer steps in.
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
    """Return the outcome of commits at random times with this rate, spread over brokers."""
    chance = random.Random(seed)
    wanted: list[list[float]] = [[] for _ in range(writers)]
    now = chance.expovariate(per_s)
    while now < seconds:
        wanted[chance.randrange(writers)].append(now)
        now += chance.expovariate(per_s)
    return simulate(wanted, latency_s=latency_s, read_latency_s=read_latency_s, seed=seed)
