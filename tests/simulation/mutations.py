"""Deliberate mistakes, each the removal of one rule. The simulation must find every one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog_core.metadata.records import Broker, BrokerLease, Partition
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.follower_state import (
    FetchAnswer,
    FollowerState,
    ReplicaFetch,
    ReplicaLog,
    Truncate,
)
from tidelog_core.replication.leader.follower_progress import FollowerProgress
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leases.own_lease import OwnLease
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.simulation.faults import Plan, draw_pattern_plan, draw_plan
from tests.simulation.node import Machines, Token
from tests.simulation.session_mutations import (
    DeafSessions,
    KeepsSessionsOfEarlierRegistrations,
    SaysNothingOfAnotherLog,
    SessionsDeafToChanges,
    SessionsWithoutForgetting,
    TakesAnybodysRequest,
    TakesAnyEpoch,
    TakesLateAnswers,
)


class TruncatesByHighWatermark(FollowerState):
    """A new follower cuts what it does not know to be committed (before KIP-101)."""

    def __init__(self, partition: Partition, broker_id: int) -> None:
        super().__init__(partition, broker_id)
        self._has_truncated = False

    def on_answer(self, fetch: ReplicaFetch, answer: FetchAnswer, log: ReplicaLog) -> Any:
        if not self._has_truncated and log.high_watermark < log.log_end_offset:
            self._has_truncated = True
            return Truncate(log.high_watermark)
        return super().on_answer(fetch, answer, log)


class NeverTruncates(FollowerState):
    """A follower that appends to whatever it has."""

    def next_fetch(self, log: ReplicaLog) -> ReplicaFetch | None:
        fetch = super().next_fetch(log)
        return None if fetch is None else dataclasses.replace(fetch, last_fetched_epoch=-1)


class TakesAnyAnswer(FollowerState):
    """A follower that takes late and doubled answers."""

    def _is_current(self, fetch: ReplicaFetch, log: ReplicaLog) -> bool:
        return True


class CountsCommittedIsr(LeaderState[Token]):
    """The high watermark leaves out who is about to join."""

    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.partition.isr)

    def _is_about_to_join(self, follower: FollowerProgress, now_ms: float) -> bool:
        return False


class ShrinksBeforeTheStore(LeaderState[Token]):
    """The high watermark leaves out who is about to leave."""

    @property
    def maximal_isr(self) -> frozenset[int]:
        proposed = self._proposals._open
        return frozenset(proposed[-1].after.isr) if proposed else super().maximal_isr


class BelievesTheFirstReading(LeaderState[Token]):
    """An old version read after an unknown outcome is taken for a write that failed."""

    def on_read(self, partition: Partition, now_ms: float) -> None:
        super().on_read(partition, now_ms)
        self._proposals._open = []
        self._proposals.on_partition(self.partition)
        self.advance(now_ms)

    def _is_about_to_join(self, follower: FollowerProgress, now_ms: float) -> bool:
        return False


class GrowsWithoutEpochStart(LeaderState[Token]):
    """A replica joins as soon as it has reached a high watermark that may lag behind."""

    def _may_join(self, follower_id: int, follower: FollowerProgress) -> bool:
        return (
            follower_id not in self.partition.isr and follower.log_end_offset >= self.high_watermark
        )


class GrowsEarlierLives(LeaderState[Token]):
    """A replica joins on the strength of what it had fetched before it restarted."""

    def _is_current(
        self,
        follower_id: int,
        follower: FollowerProgress,
        brokers: Mapping[int, Broker],
        peers: PeerLeases,
    ) -> bool:
        return True

    def _joining_checks(
        self, joining: list[int], brokers: Mapping[int, Broker]
    ) -> tuple[Check, ...]:
        return ()


class TrustsStoredIsr(LeaderState[Token]):
    """A new leader takes its ISR to have all that it has, before anyone has fetched."""

    def __init__(self, partition: Partition, **given: Any) -> None:
        super().__init__(partition, **given)
        for follower_id in partition.isr:
            if follower_id in self.followers:
                self.followers[follower_id].log_end_offset = self.log_end_offset
        self.advance(given["now_ms"])


class AnswersWhileHandingOver(LeaderState[Token]):
    """A leader that goes on after it has made another one leader."""

    @property
    def is_serving(self) -> bool:
        return not self.is_deposed

    @property
    def is_moving(self) -> bool:
        return False

    def require_appendable(self, *, needs_all: bool) -> None:
        return


class NeverFencesItself(OwnLease):
    """A broker that goes on when it cannot renew."""

    def may_act(self, now_ms: float) -> bool:
        return self._grant is not None


class CountsFromTheAnswer(OwnLease):
    """A lease that is counted from when the renewal came back, and without a margin."""

    def on_renewed(self, record: BrokerLease, *, started_ms: float, now_ms: float) -> bool:
        late_ms = now_ms + self._times.margin_ms
        return super().on_renewed(record, started_ms=late_ms, now_ms=now_ms)


class ResumesWithoutReading(OwnLease):
    """A broker that acts as soon as it has renewed, whoever has taken over meanwhile."""

    def on_renewed(self, record: BrokerLease, *, started_ms: float, now_ms: float) -> bool:
        super().on_renewed(record, started_ms=started_ms, now_ms=now_ms)
        self._ended_fence = self._fence_count
        return False


class AnyoneTakesOver(LeaderElector):
    """A live replica takes over whether it is in the ISR or not."""

    def candidates(self, partition: Partition, peers: PeerLeases) -> list[int]:
        return self._live(partition.replicas, peers)

    def _change(
        self, partition: Partition, peers: PeerLeases, successor: int, *, is_clean: bool
    ) -> PartitionChange:
        change = super()._change(partition, peers, successor, is_clean=True)
        isr = tuple(dict.fromkeys((*change.after.isr, successor)))
        return dataclasses.replace(change, after=dataclasses.replace(change.after, isr=isr))


class TakesOverUnchecked(LeaderElector):
    """A takeover that does not ask whether the dead leader has renewed meanwhile."""

    def _change(
        self, partition: Partition, peers: PeerLeases, successor: int, *, is_clean: bool
    ) -> PartitionChange:
        change = super()._change(partition, peers, successor, is_clean=is_clean)
        return dataclasses.replace(change, checks=())


class GoesOnAfterRestart(LeaderElector):
    """A broker that goes on leading the epoch that it led in an earlier life."""

    def start(self, partitions: Iterable[Partition]) -> None:
        return


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake, and the pattern of faults that meets it soonest (``None``: any run does)."""

    machines: Machines
    pattern: str | None = None
    first_seed: int = 0  # to look with: later where chance is slow to meet it

    def plan(self, seed: int) -> Plan:
        """Return a plan to look for the mistake with."""
        return draw_plan(seed) if self.pattern is None else draw_pattern_plan(seed, self.pattern)


MUTATIONS: Mapping[str, Mutation] = {
    "truncates by high watermark": Mutation(
        Machines(follower=TruncatesByHighWatermark), first_seed=33
    ),
    "never truncates": Mutation(Machines(follower=NeverTruncates), first_seed=31),
    "takes any answer": Mutation(Machines(follower=TakesAnyAnswer)),
    "counts the committed ISR only": Mutation(
        Machines(leader=CountsCommittedIsr), "cut off while its return is written"
    ),
    "shrinks before the store agrees": Mutation(
        Machines(leader=ShrinksBeforeTheStore), "cut off until its departure is written"
    ),
    "believes the first reading": Mutation(
        Machines(leader=BelievesTheFirstReading),
        "cut off while nobody knows whether its return is written",
        40,
    ),
    "grows without the epoch start": Mutation(
        Machines(leader=GrowsWithoutEpochStart), "returns to a leader that knows little", 16
    ),
    "grows earlier lives": Mutation(
        Machines(leader=GrowsEarlierLives), "loses what it has caught up with", 37
    ),
    "trusts the stored ISR": Mutation(
        Machines(leader=TrustsStoredIsr),
        "leads when the one before it and the one after it are cut off",
    ),
    "answers while handing over": Mutation(Machines(leader=AnswersWhileHandingOver), first_seed=33),
    "never fences itself": Mutation(Machines(own_lease=NeverFencesItself)),
    "counts the lease from the answer": Mutation(
        Machines(own_lease=CountsFromTheAnswer), "sleeps while its renewal is on the way", 18
    ),
    "resumes without reading": Mutation(
        Machines(own_lease=ResumesWithoutReading), "renews while it is being replaced", 22
    ),
    "anyone takes over": Mutation(Machines(elector=AnyoneTakesOver)),
    "takes over unchecked": Mutation(
        Machines(elector=TakesOverUnchecked), "renews while it is being replaced", 250
    ),
    "goes on after a restart": Mutation(Machines(elector=GoesOnAfterRestart)),
    "stays in the ISR after a power loss": Mutation(Machines(leaves_isr_after_power_loss=False)),
    "a session vouches for what was told before a registration": Mutation(
        Machines(handler=KeepsSessionsOfEarlierRegistrations, fetcher=SaysNothingOfAnotherLog),
        "comes back with less of its log",
    ),
    "a session takes any epoch": Mutation(
        Machines(handler=TakesAnyEpoch), "hears everything twice"
    ),
    "a session takes anybody's requests": Mutation(
        Machines(handler=TakesAnybodysRequest), "hears everything twice"
    ),
    "a session does not look at what has news": Mutation(Machines(sessions=DeafSessions)),
    "a session does not look at what is committed": Mutation(
        Machines(sessions=SessionsDeafToChanges)
    ),
    "a session goes on with what is forgotten": Mutation(
        Machines(sessions=SessionsWithoutForgetting)
    ),
    "takes any answer of a session": Mutation(Machines(fetcher=TakesLateAnswers)),
}
