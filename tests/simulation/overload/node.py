"""A node as far as leases, suspicion and elections go, on a machine that is too slow for it.

It renews its lease, reads those of all, elects itself for partitions whose leader it suspects, and
enters them: the second write, by which its own chain has them, comes after the work on the object
store. Every step comes late by chance. A call that takes too long counts as an unknown outcome, and
is carried out all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import BrokerLease, Partition
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.observed_lease import WrongSuspicion
from tidelog_core.replication.leases.observed_time import ReadingPlan
from tidelog_core.replication.leases.own_lease import OwnLease
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.simulation.overload.store import Connection, LockedStore, Outcome, Record
from tests.simulation.world import World

TIMES = LeaseTimes(lease_ms=2_000, renew_ms=500)  # as in chaos
CALL_MS_MAX = TIMES.lease_ms / 3
READING_MS = POLL_MS = 200.0
RETRY_MS = 1_000.0  # before partitions that could not be entered are tried again
PUT_MS = 100.0  # between two objects of a chain


@dataclasses.dataclass(slots=True)
class Machine:
    """What all nodes share, and how slow it is."""

    world: World
    store: LockedStore
    random: Random
    broker_ids: range
    leases: Callable[[int], PeerLeases]  # by the observer's id
    lag_share: float = 0.0  # of the steps that come late
    lag_ms_max: float = 0.0
    entering_ms_max: float = 300.0
    sealed: set[ChainName] = dataclasses.field(default_factory=set)
    wrong: list[WrongSuspicion] = dataclasses.field(default_factory=list)

    def lag_ms(self) -> float:
        """Return how late the next step of a process comes."""
        is_late = self.random.random() < self.lag_share
        return self.random.random() * (self.lag_ms_max if is_late else 5.0)


class OverloadedNode:
    """One broker; it lives until ``kill``."""

    def __init__(self, broker_id: int, machine: Machine) -> None:
        self.broker_id = broker_id
        self._m = machine
        self.is_up = True
        self._elector = LeaderElector(broker_id)
        self.peers = machine.leases(broker_id)
        self.lease = OwnLease(broker_id, UUID(int=broker_id + 1), times=TIMES, found=None)
        self.chain = ChainName(broker_id, UUID(int=broker_id << 32))
        self._renewals, self._readings, self._main = (Connection(machine.store) for _ in range(3))
        self._image: dict[UUID, Partition] = {}
        self._call = 0  # of the lease's thread: the number of the last one
        self._is_writing = self._is_entering = False
        self._after(self._renew)
        self._after(self._read)
        self._after(self._poll)
        self._after(self._put)

    def kill(self) -> None:
        """End the process."""
        self.is_up = False

    def _after(self, step: Callable[..., None], *args: Any, delay_ms: float = 0.0) -> None:
        """Have a step come after that time, and later if the machine is slow."""

        def begin() -> None:
            if self.is_up:
                step(*args)

        self._m.world.after(delay_ms + self._m.lag_ms(), begin)

    @property
    def _now_ms(self) -> float:
        return self._m.world.now_ms

    @property
    def _plan(self) -> ReadingPlan:
        return ReadingPlan(READING_MS, TIMES.renewal_ms(is_brisk=True))

    # -- the lease's thread --

    def _renew(self) -> None:
        now_ms, own = self._now_ms, self.lease
        if not own.is_renewal_due(now_ms):
            self._after(self._renew, delay_ms=(own.next_renewal_ms or now_ms) - now_ms)
            return
        self._call += 1
        if own.needs_read:
            self._renewals.read(self._on_lease_read, self._call)
        else:
            record = own.begin_renewal(now_ms, is_brisk=True)
            self._renewals.commit([record], (), self._on_renewed, self._call, record, now_ms)
        self._after(self._on_late, self._call, delay_ms=CALL_MS_MAX)

    def _on_late(self, call: int) -> None:
        if call == self._call:
            self._call += 1
            self.lease.on_unknown(self._now_ms)
            self._renew()

    def _on_lease_read(self, _: Outcome, found: list[Record], call: int) -> None:
        if self.is_up and call == self._call:
            self._call += 1
            leases = [one for one in found if isinstance(one, BrokerLease)]
            self.lease.on_read(next((b for b in leases if b.broker_id == self.broker_id), None))
            self._after(self._renew)

    def _on_renewed(
        self, outcome: Outcome, _: Any, call: int, record: BrokerLease, started_ms: float
    ) -> None:
        if not self.is_up or call != self._call:
            return
        self._call += 1
        if outcome == "ok":
            self.lease.on_renewed(record, started_ms=started_ms, now_ms=self._now_ms)
        elif outcome == "refused":
            self.lease.on_refused(self._now_ms)
        else:
            self.lease.on_unknown(self._now_ms)
        self._after(self._renew)

    # -- readings of all leases --

    def _read(self) -> None:
        self._readings.read(self._on_read, self._now_ms)

    def _on_read(self, _: Outcome, found: list[Record], started_ms: float) -> None:
        if not self.is_up:
            return
        leases = [one for one in found if isinstance(one, BrokerLease)]
        now_ms = self._now_ms
        self._m.wrong += self.peers.observe(
            leases, started_ms=started_ms, now_ms=now_ms, plan=self._plan
        )
        self._after(self._elect)
        self._after(self._read, delay_ms=max(0.0, started_ms + READING_MS - now_ms))

    # -- the image, elections, and entering --

    def _poll(self) -> None:
        self._main.read(self._on_image, self._now_ms)
        self._after(self._poll, delay_ms=POLL_MS)

    def _on_image(self, _: Outcome, found: list[Record], started_ms: float) -> None:
        if not self.is_up:
            return
        for record in found:
            if isinstance(record, Partition):
                known = self._image.get(record.topic_id)
                if known is None or known.version < record.version:
                    self._image[record.topic_id] = record
        self.lease.on_cluster_read(started_ms)
        self._elect()
        self._enter()

    def _elect(self) -> None:
        if self._is_writing or not self.lease.may_act(self._now_ms):
            return
        others = (b for b in self._m.broker_ids if b != self.broker_id)
        live = [self.broker_id, *(b for b in others if self.peers.is_live(b))]
        changes = [
            change
            for partition in self._image.values()
            if partition.leader != self.broker_id
            and (change := self._elector.inherit(partition, self.peers, live)) is not None
        ]
        if changes:
            # One transaction of those with the same dead leader; the others come next.
            together = [one for one in changes if one.checks == changes[0].checks]
            self._is_writing = True
            records = [one.after for one in together]
            self._main.commit(records, changes[0].checks, self._on_elected)

    def _on_elected(self, _: Outcome, lost: Any) -> None:
        if self.is_up:
            self.peers.note_moved(lost)
            self._main.read(self._on_settled, self._now_ms)

    def _on_settled(self, outcome: Outcome, found: list[Record], started_ms: float) -> None:
        if self.is_up:
            self._is_writing = False
            self._on_image(outcome, found, started_ms)

    def _enter(self) -> None:
        unentered = [
            one
            for one in self._image.values()
            if one.leader == self.broker_id and one.wal[-1].chain != self.chain
        ]
        if not unentered or self._is_entering:
            return
        self._is_entering = True
        work_ms = self._m.random.random() * self._m.entering_ms_max
        self._after(self._seal, unentered, delay_ms=work_ms / 3)

    def _seal(self, entering: list[Partition]) -> None:
        self._m.sealed.update(one.wal[-1].chain for one in entering)
        work_ms = self._m.random.random() * self._m.entering_ms_max
        self._after(self._begin_epochs, entering, delay_ms=work_ms)

    def _begin_epochs(self, entering: list[Partition]) -> None:
        chain = self.chain
        after = [
            dataclasses.replace(one, wal=(EpochChain(one.leader_epoch, chain, 0),))
            for one in entering
        ]
        self._main.commit(after, (), self._on_entered)

    def _on_entered(self, outcome: Outcome, _: Any) -> None:
        if self.is_up:
            self._after(self._end_entering, delay_ms=0.0 if outcome == "ok" else RETRY_MS)

    def _end_entering(self) -> None:
        self._is_entering = False
        self._main.read(self._on_image, self._now_ms)

    def _put(self) -> None:
        """Put an object of the chain: one that was sealed is followed by another chain."""
        if self.chain in self._m.sealed:
            self.chain = ChainName(self.broker_id, UUID(int=self.chain.chain_id.int + 1))
        self._after(self._put, delay_ms=PUT_MS)
