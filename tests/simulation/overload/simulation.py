"""Three nodes on a machine that is too slow for them, with a store that is locked again and again.

Nobody dies unless a plan says so. What a rule of suspicion is worth shows in the share of the time
in which partitions take records, and in the number of elections.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from uuid import UUID

from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import AckedBy, Partition
from tidelog_core.replication.leases.adaptive_timeouts import AdaptiveTimeouts
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.simulation.overload.node import TIMES, Machine, OverloadedNode
from tests.simulation.overload.store import LockedStore
from tests.simulation.world import World

NODES, PARTITIONS = 3, 6
SAMPLE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Load:
    """How slow the machine is, and for how long the store is locked; milliseconds."""

    slowness: float = 1.0  # of each step of a call
    lag_share: float = 0.0
    lag_ms_max: float = 0.0
    entering_ms_max: float = 300.0
    locked_ms: tuple[float, float] | None = None  # None: never
    free_ms: tuple[float, float] = (500.0, 3_000.0)


CALM = Load()
# As in a chaos run of half an hour at load 20 on two cores: locked for two thirds of the time.
OVERLOAD = Load(
    slowness=10.0,
    lag_share=0.4,
    lag_ms_max=2_500.0,
    entering_ms_max=6_000.0,
    locked_ms=(2_000.0, 6_000.0),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run has shown from a moment on."""

    led_share: float  # of all partitions and moments
    elections: int
    led_again_ms: float  # the last moment in which a partition of a killed node was not led
    wrong: int  # suspicions that were, in the whole run


class OverloadSimulation:
    """One run. ``Random`` decides everything, so a seed is the same run again."""

    def __init__(self, seed: int, load: Load, *, is_adaptive: bool = True) -> None:
        random = Random(seed)
        self._random, self._load = random, load
        self.world = World()
        self.store = LockedStore(self.world, random)
        self.store.slowness = load.slowness
        self.store.on_partition = self._on_partition
        self.machine = Machine(
            self.world,
            self.store,
            random,
            range(NODES),
            adaptive_leases if is_adaptive else fixed_leases,
            lag_share=load.lag_share,
            lag_ms_max=load.lag_ms_max,
            entering_ms_max=load.entering_ms_max,
        )
        self.store.lag_ms = self.machine.lag_ms
        self.elections: list[float] = []
        for number in range(PARTITIONS):
            leader = number % NODES
            first = EpochChain(0, ChainName(leader, UUID(int=leader << 32)), 0)
            self.store.put(
                Partition(
                    topic_id=UUID(int=number + 1),
                    partition=0,
                    replicas=tuple((leader + turn) % NODES for turn in range(NODES)),
                    leader=leader,
                    leader_epoch=0,
                    isr=tuple(range(NODES)),
                    wal=(first,),
                    acked_by=AckedBy.CHAIN,
                )
            )
        self.nodes = [OverloadedNode(broker_id, self.machine) for broker_id in range(NODES)]
        if load.locked_ms is not None:
            self.world.after(3_000.0, self._lock)

    def run(self, *, until_ms: float, since_ms: float = 0.0) -> Seen:
        """Go on until then; return what there is to see from ``since_ms`` on."""
        samples = led = 0
        led_again_ms = since_ms
        while self.world.now_ms < until_ms:
            self.world.run(self.world.now_ms + SAMPLE_MS)
            if self.world.now_ms <= since_ms:
                continue
            for partition in self.store.partitions():
                samples += 1
                if self.is_led(partition):
                    led += 1
                elif not self.nodes[partition.wal[-1].chain.broker_id].is_up:
                    led_again_ms = self.world.now_ms
        elections = sum(at_ms > since_ms for at_ms in self.elections)
        wrong = len(self.machine.wrong)
        return Seen(led / samples, elections, led_again_ms, wrong)

    def is_led(self, partition: Partition) -> bool:
        """Whether the partition's leader acknowledges records at this moment.

        It needs no lease for that: its chain proves that nobody else leads.
        """
        chain = partition.wal[-1].chain
        node = self.nodes[chain.broker_id]
        return node.is_up and node.chain == chain and chain not in self.machine.sealed

    def _on_partition(self, before: Partition, after: Partition) -> None:
        if before.leader != after.leader:
            self.elections.append(self.world.now_ms)

    def _lock(self) -> None:
        assert self._load.locked_ms is not None
        locked_ms = self._random.uniform(*self._load.locked_ms)
        self.store.locked_until_ms = self.world.now_ms + locked_ms
        self.world.after(locked_ms + self._random.uniform(*self._load.free_ms), self._lock)


class _NoExtraTime(AdaptiveTimeouts):
    def note_wrong(self, broker_id: int, *, late_ms: float, now_ms: float) -> None:
        """Learn nothing."""


class _FixedLeases(PeerLeases):
    """The rule without adaptive timeouts: all of the observer's time counts."""

    def observe(self, leases, *, started_ms, now_ms, plan=None):  # type: ignore[no-untyped-def]
        return super().observe(leases, started_ms=started_ms, now_ms=now_ms)


def adaptive_leases(own: int) -> PeerLeases:
    """Return leases as a node keeps them."""
    return PeerLeases(TIMES, own=own)


def fixed_leases(own: int) -> PeerLeases:
    """Return leases with timeouts that never change."""
    return _FixedLeases(TIMES, own=own, timeouts=_NoExtraTime(TIMES))
