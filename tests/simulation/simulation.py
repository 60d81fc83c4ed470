"""One run of one plan: five seconds of trouble, then peace, then everything must be well."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.placement.reassignment import (
    cancel_reassignment,
    is_reassigning,
    start_reassignment,
)

from tests.simulation.checker import Checker, Violation
from tests.simulation.clients import Consumer, Producer
from tests.simulation.faults import FAULTY_MS, Fault, Plan, Target, draw_plan
from tests.simulation.leading import TOPIC_ID
from tests.simulation.node import (
    HAND_OVER_MS,
    RETRY_MS,
    Loss,
    Machines,
    Setup,
    SimNode,
)
from tests.simulation.store import SimStore
from tests.simulation.world import CLIENT, Network, World
from tests.support.sim_log import SimLog, Tier

HEAL_MS = FAULTY_MS + 600.0
# A lease (900), the restart, the readings and every step-in delay, twice over: a fault may
# have left the last second of trouble for the first takeover to fail in.
ACCEPTS_WITHIN_MS = 3_500.0
QUIET_WITHIN_MS = 6_000.0
CLOCK_RATE_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run that found nothing wrong has done."""

    event_count: int
    acked_all: int
    acked_one: int
    reads: int
    epochs: int
    is_lossy: bool
    recovery_ms: float  # from the healing until every producer had written again


class Simulation:
    """Builds the cluster, lets the plan happen, asks the checker."""

    def __init__(self, plan: Plan, machines: Machines | None = None) -> None:
        self._plan = plan
        # Each part draws from its own numbers, so that fewer faults change nothing else.
        randoms = [Random(plan.seed * 16 + part) for part in range(6)]
        self.world = World()
        self.network = Network(self.world, randoms[0])
        self.network.duplication = plan.duplication
        self.store = SimStore(self.world, randoms[1])
        replicas = tuple(range(plan.broker_count))[: plan.replica_count]
        partition = Partition(
            topic_id=TOPIC_ID,
            partition=0,
            replicas=replicas,
            leader=replicas[0],
            leader_epoch=0,
            isr=replicas,
        )
        self.key = partition.item_id
        self.store.put(partition)
        self.checker = Checker(
            lambda: self.store.partition(self.key), is_unclean_allowed=plan.is_unclean_allowed
        )
        self.store.on_partition = self.checker.on_stored
        self.tier = Tier()
        setup = Setup(
            world=self.world,
            network=self.network,
            store=self.store,
            checker=self.checker,
            tier=self.tier,
            machines=machines or Machines(),
            key=self.key,
            rules=ReplicationRules(
                min_insync_replicas=plan.min_insync_replicas,
                lag_time_max_ms=plan.lag_time_max_ms,
                retry_ms=RETRY_MS,
                hand_over_ms=HAND_OVER_MS,
            ),
            is_unclean_allowed=plan.is_unclean_allowed,
            fetch_count_max=plan.fetch_count_max,
            session_slots=plan.session_slots,
            random=randoms[2],
        )
        self.nodes = [
            SimNode(
                broker_id,
                setup,
                rate=1 + (randoms[3].random() * 2 - 1) * CLOCK_RATE_SPREAD,
                skew_ms=randoms[3].random() * 100_000,
            )
            for broker_id in range(plan.broker_count)
        ]
        for node in self.nodes:
            node.peers = {other.broker_id: other for other in self.nodes}
            node.start()
        shared = {
            "nodes": self.nodes,
            "world": self.world,
            "network": self.network,
            "random": randoms[4],
        }
        self.producers = [
            Producer(0, is_all=True, interval_ms=plan.produce_interval_ms, **shared),
            Producer(1, is_all=True, interval_ms=2.5 * plan.produce_interval_ms, **shared),
            Producer(2, is_all=False, interval_ms=2 * plan.produce_interval_ms, **shared),
        ]
        self.consumer = Consumer(**shared)

    def run(self) -> RunReport:
        """Return what was done. Raises ``Violation``."""
        world = self.world
        self.begin_faults()
        world.run(HEAL_MS)
        self._heal()
        pending = [producer.acked_count for producer in self.producers]

        def accepts() -> bool:
            return all(
                producer.acked_count > before
                for producer, before in zip(self.producers, pending, strict=True)
            )

        world.run(HEAL_MS + ACCEPTS_WITHIN_MS, accepts)
        if not accepts():
            raise Violation(f"no writes {ACCEPTS_WITHIN_MS} ms after everything has healed")
        recovery_ms = world.now_ms - HEAL_MS
        for producer in self.producers:
            producer.is_stopped = True
        world.run(HEAL_MS + QUIET_WITHIN_MS, self._is_quiet)
        if not self._is_quiet():
            raise Violation(f"not at rest {QUIET_WITHIN_MS} ms after everything has healed")
        self.checker.finish(self._logs())
        return RunReport(
            world.event_count,
            len(self.checker.acked_all),
            self.checker.acked_one,
            self.checker.reads,
            self.store.partition(self.key).leader_epoch,
            self.checker.is_lossy,
            recovery_ms,
        )

    def begin_faults(self) -> None:
        """Let the plan's faults happen when their time has come."""
        for fault in self._plan.faults:
            self.world.at(fault.at_ms, self._begin, fault)

    def _logs(self) -> dict[int, SimLog]:
        replicas = self.store.partition(self.key).replicas
        return {node.broker_id: node.log for node in self.nodes if node.broker_id in replicas}

    def _is_quiet(self) -> bool:
        """Whether all replicas are in sync and equal, nobody moves and nobody waits."""
        if any(fault.at_ms > self.world.now_ms for fault in self._plan.faults):
            return False
        stored = self.store.partition(self.key)
        if set(stored.isr) != set(stored.replicas) or is_reassigning(stored):
            return False
        ends = {log.log_end_offset for log in self._logs().values()}
        watermarks = {log.high_watermark for log in self._logs().values()}
        return (
            len(ends) == 1
            and watermarks == ends
            and not any(producer.is_waiting for producer in self.producers)
        )

    # -- faults --

    def _begin(self, fault: Fault) -> None:
        place, other = self._pick(fault)
        node, duration_ms = self.nodes[place], fault.duration_ms
        everyone = {CLIENT, *range(len(self.nodes))} - {place}
        outgoing = {(place, peer) for peer in everyone}
        incoming = {(peer, place) for peer in everyone}
        match fault.kind:
            case "crash" | "power-loss" | "disk-loss":
                if node.is_up:
                    node.crash(Loss(fault.kind))
                    self.world.after(duration_ms, self._restart, node)
            case "pause":
                node.pause()
                self.world.after(duration_ms, node.resume)
            case "stall":
                node.stall()
                self.world.after(duration_ms, node.end_stall)
            case "isolate":
                self._cut(outgoing | incoming, duration_ms)
            case "isolate-one-way":
                self._cut(outgoing if fault.amount < 0.5 else incoming, duration_ms)
            case "cut-link":
                self._cut({(place, other), (other, place)}, duration_ms)
            case "cut-link-one-way":
                self._cut({(place, other)}, duration_ms)
            case "cut-store":
                self.store.cut.add(place)
                self.world.after(duration_ms, self.store.cut.discard, place)
            case "cut-all":
                self.store.cut.add(place)
                self.world.after(duration_ms, self.store.cut.discard, place)
                self._cut(outgoing | incoming, duration_ms)
            case _:
                self._begin_elsewhere(fault, place, other)

    def _pick(self, fault: Fault) -> tuple[int, int]:
        """Return the broker that the fault hits and another one."""
        stored = self.store.partition(self.key)
        leader = max(stored.leader, 0)
        match fault.target:
            case Target.LEADER:
                place = leader
            case Target.MEMBER:
                place = next((b for b in stored.isr if b != leader), fault.place)
            case Target.FOLLOWER:
                place = next((b for b in reversed(stored.replicas) if b != leader), fault.place)
            case Target.PLACE:
                place = fault.place
        other = fault.other
        if fault.target in (Target.MEMBER, Target.FOLLOWER) or other == place:
            other = leader if place != leader else (place + 1) % len(self.nodes)
        return place, other

    def _begin_elsewhere(self, fault: Fault, place: int, other: int) -> None:
        """Begin what hits the store, the network, or is an operator's doing."""
        store, network, duration_ms = self.store, self.network, fault.duration_ms
        match fault.kind:
            case "store-slow":
                self._set(store, "delay_factor", 2 + fault.amount * 30, 1.0, duration_ms)
            case "store-refuses":
                self._set(store, "refusal", 0.2 + fault.amount * 0.7, 0.0, duration_ms)
            case "store-unknown":
                self._set(store, "unknown", 0.2 + fault.amount * 0.7, 0.0, duration_ms)
            case "lossy-network":
                self._set(network, "loss", 0.05 + fault.amount * 0.4, 0.0, duration_ms)
            case "slow-network":
                self._set(network, "delay_factor", 2 + fault.amount * 40, 1.0, duration_ms)
            case "doubling-network":
                self._set(network, "duplication", 0.1 + fault.amount * 0.5, 0.0, duration_ms)
            case _:
                self._administer_fault(fault, place, other)

    def _administer_fault(self, fault: Fault, place: int, other: int) -> None:
        match fault.kind:
            case "reassign":
                self._reassign(place, other)
            case "cancel-reassignment":
                self._cancel_reassignment()
            case "drain":
                self.nodes[place].drain()
                self.world.after(fault.duration_ms, self._stop_drained, self.nodes[place])
            case "delete-records":
                self._delete_records(fault.amount)
            case "tier":
                for node in self.nodes:
                    node.tier(evicts=fault.amount < 0.6)
            case "break-log":
                self.nodes[place].break_log()
            case "evict-sessions":
                self.nodes[place].evict_sessions()
            case unknown:
                raise AssertionError(f"no such fault: {unknown}")

    def _cut(self, links: set[tuple[int, int]], duration_ms: float) -> None:
        added = links - self.network.cut
        self.network.cut |= added
        self.world.after(duration_ms, self.network.cut.difference_update, added)

    def _set(
        self, part: SimStore | Network, name: str, value: float, peace: float, duration_ms: float
    ) -> None:
        setattr(part, name, value)
        self.world.after(duration_ms, setattr, part, name, peace)

    def _restart(self, node: SimNode) -> None:
        if not node.is_up:
            node.start()

    def _stop_drained(self, node: SimNode) -> None:
        if node.is_up and node.is_draining:
            node.leave()
            self.world.after(100, self._restart, node)

    def _reassign(self, place: int, other: int) -> None:
        partition = self.store.partition(self.key)
        target = [other, *(b for b in partition.replicas if b not in (place, other))]
        self._administer(
            start_reassignment(
                partition,
                target[: self._plan.replica_count],
                broker_ids=set(range(len(self.nodes))),
            )
        )

    def _cancel_reassignment(self) -> None:
        try:
            self._administer(cancel_reassignment(self.store.partition(self.key)))
        except TidelogError:
            return

    def _delete_records(self, amount: float) -> None:
        partition = self.store.partition(self.key)
        end_offset = int(len(self.checker.committed) * amount)
        if end_offset > partition.log_start_offset:
            after = dataclasses.replace(partition, log_start_offset=end_offset)
            self.store.commit(_Admin(), [after], (), lambda *_: None)

    def _administer(self, change: PartitionChange | None) -> None:
        if change is not None:
            self.store.commit(_Admin(), [change.after], change.checks, lambda *_: None)

    def _heal(self) -> None:
        self.network.heal()
        self.network.duplication = self._plan.duplication
        self.store.heal()
        for node in self.nodes:
            node.resume()
            node.end_stall()
            if node.is_up and node.is_draining:
                node.crash(Loss.NOTHING)
            if not node.is_up:
                node.start()


class _Admin:
    """Someone with the command line, who never looks at the answer."""

    broker_id = CLIENT

    def deliver(self, *_: object) -> None:
        """Look away."""


def run_seed(seed: int, machines: Machines | None = None) -> RunReport:
    """Run the plan of a seed. Raises ``Violation`` with the seed in its message."""
    return run_plan(draw_plan(seed), machines)


def run_plan(plan: Plan, machines: Machines | None = None) -> RunReport:
    """Run a plan. Raises ``Violation`` with the seed in its message."""
    try:
        return Simulation(plan, machines).run()
    except Violation as problem:
        raise Violation(f"seed {plan.seed}: {problem}") from problem
    except Exception as problem:
        problem.add_note(f"seed {plan.seed}")
        raise


def shrink(plan: Plan, machines: Machines | None = None) -> Plan:
    """Return a plan with as few of the faults as still fail."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for index in range(len(plan.faults)):
            faults = plan.faults[:index] + plan.faults[index + 1 :]
            fewer = dataclasses.replace(plan, faults=faults)
            try:
                run_plan(fewer, machines)
            except Violation:
                plan, is_smaller = fewer, True
                break
    return plan
