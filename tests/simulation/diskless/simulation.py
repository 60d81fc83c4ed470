"""One run of one plan: trouble, then peace, then everything must be well."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random
from uuid import UUID

from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain

from tests.simulation.checker import Violation
from tests.simulation.diskless.checker import DisklessChecker
from tests.simulation.diskless.clients import Client
from tests.simulation.diskless.items import SimItem, SimItems
from tests.simulation.diskless.leader_log import SimTier
from tests.simulation.diskless.node import Incarnation, Setup, SimNode
from tests.simulation.diskless.objects import LATE_MS_MAX, SimObjects
from tests.simulation.diskless.plan import Fault, Plan, draw_plan
from tests.simulation.diskless.shell import Mutable
from tests.simulation.world import World

HEALS_AFTER_MS = 100.0
ACCEPTS_WITHIN_MS = 5_000.0
QUIET_WITHIN_MS = 8_000.0
SETTLES_MS = LATE_MS_MAX + 100.0  # what is late comes, and may still do harm
TOPIC = UUID("5f6dc6a4-35d9-4f1c-9d6c-1f0a3d3a9d11")


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run that found nothing wrong has done."""

    event_count: int
    acked: int
    puts: int
    epochs: int
    seals: int
    stray_seals: int
    garbage: int
    references: int
    deleted: int
    deleted_untiered: int  # below a log start
    checkpoints: int
    beyond_tier: int  # partitions that an heir has found by a log start beyond their tier
    epoch_bumps: int
    taken_back: int  # partitions that were handed over to a node that never entered them
    failed_builds: int
    recovery_ms: float


class Simulation:
    """Builds the cluster, lets the plan happen, asks the checker."""

    def __init__(
        self, plan: Plan, rules: ChainRules | None = None, shell: Mutable | None = None
    ) -> None:
        self._plan = plan
        randoms = [Random(plan.seed * 16 + part) for part in range(5)]
        self.world = World()
        self.checker = DisklessChecker()
        self.objects = SimObjects(self.world, randoms[0])
        self.objects.on_applied = self.checker.on_applied
        self.objects.on_deleted = self.checker.on_deleted
        self.items = SimItems(self.world, randoms[1])
        self.items.on_chains = self.checker.on_stored
        self.partitions = [PartitionName(TOPIC, number) for number in range(plan.partition_count)]
        self.nodes: list[SimNode] = []
        self.setup = Setup(
            world=self.world,
            objects=self.objects,
            items=self.items,
            checker=self.checker,
            tiers={partition: SimTier() for partition in self.partitions},
            rules=rules or ChainRules(),
            shell=shell or Mutable(),
            random=randoms[2],
            nodes=self.nodes,
            tier_chance=plan.tier_chance,
        )
        for broker_id in range(plan.node_count):
            self.nodes.append(SimNode(broker_id, self.setup))
        for partition in self.partitions:
            first = EpochChain(0, self._chain(partition.partition % plan.node_count), 0)
            self.items.items[partition] = SimItem(partition, (first,), 1)  # type: ignore[assignment,index]
            self.checker.begin(partition, (first,))
        self.clients = [
            Client(
                number,
                self.partitions[number % len(self.partitions)],
                self.setup,
                randoms[3],
                is_elsewhere=number % 3 == 1,
                is_transactional=number == 3,
                is_bursty=plan.is_bursty,
            )
            for number in range(5)
        ]

    def _chain(self, broker_id: int) -> ChainName:
        current = self.nodes[broker_id].current
        assert current is not None
        return current.chain

    def run(self) -> RunReport:
        """Return what was done. Raises ``Violation``."""
        world = self.world
        for fault in self._plan.faults:
            world.at(fault.at_ms, self._begin, fault)
        heal_ms = self._plan.faulty_ms + HEALS_AFTER_MS
        world.run(heal_ms)
        self._heal()
        pending = [client.acked for client in self.clients]

        def accepts() -> bool:
            return all(c.acked > before for c, before in zip(self.clients, pending, strict=True))

        world.run(heal_ms + ACCEPTS_WITHIN_MS, accepts)
        if not accepts():
            raise Violation(f"no writes {ACCEPTS_WITHIN_MS} ms after everything has healed")
        recovery_ms = world.now_ms - heal_ms
        for client in self.clients:
            client.is_stopped = True
        world.run(heal_ms + QUIET_WITHIN_MS, self._is_quiet)
        if not self._is_quiet():
            raise Violation(f"not at rest {QUIET_WITHIN_MS} ms after everything has healed")
        world.run(world.now_ms + SETTLES_MS)
        checker = self.checker
        checker.finish(self.objects.objects)
        return RunReport(
            event_count=world.event_count,
            acked=checker.acked_count,
            puts=self.objects.put_count,
            epochs=sum(len(chains) for chains in checker.stored.values()),
            seals=checker.seals,
            stray_seals=checker.stray_seals,
            garbage=checker.garbage,
            references=checker.references,
            deleted=checker.deleted,
            deleted_untiered=checker.deleted_untiered,
            checkpoints=checker.checkpoints,
            beyond_tier=checker.beyond_tier,
            epoch_bumps=checker.epoch_bumps,
            taken_back=sum(
                before.chain == after.chain and after.first_offset == between.first_offset
                for chains in checker.stored.values()
                for before, between, after in zip(chains, chains[1:], chains[2:], strict=False)
                if before.chain == between.chain
            ),
            failed_builds=self.setup.failed_builds,
            recovery_ms=recovery_ms,
        )

    def _is_quiet(self) -> bool:
        return not any(client.is_waiting for client in self.clients)

    # -- faults --

    def _begin(self, fault: Fault) -> None:
        node, world = self.nodes[fault.place], self.world
        current = node.current
        match fault.kind:
            case "kill":
                self._kill(node, fault.duration_ms)
            case "kill-all":
                for one in self.nodes:
                    self._kill(one, fault.duration_ms)
            case "pause" if current is not None:
                current.pause()
                world.after(fault.duration_ms, current.resume)
            case "trim":
                for delay_ms in (0.0, 50.0, 100.0):
                    world.after(delay_ms, self._trim, node, fault.amount)
            case "disk":
                node.disk_fails_until_ms = world.now_ms + fault.duration_ms
            case "clock":
                node.skew_ms += (fault.amount - 0.5) * 20_000
            case "cut-objects":
                self._cut(self.objects.cut, fault)
            case "cut-items":
                self._cut(self.items.cut, fault)
            case _ if current is not None:
                self._ask(current, fault)

    def _ask(self, current: Incarnation, fault: Fault) -> None:
        """Have nodes suspect, collect or move; or begin what hits the stores."""
        match fault.kind:
            case "suspect":
                others = (fault.other, fault.other + 1 if fault.amount < 0.4 else fault.other)
                for other in others:  # two heirs at once, some of the time
                    heir = self.nodes[other % len(self.nodes)].current
                    if heir is not None:
                        heir.take_over(current.chain)
            case "collect":
                for chain in sorted(self.checker.chains):
                    current.collect(chain)
            case "move":
                self._move(current, fault)
            case _:
                self._trouble_stores(fault)

    def _kill(self, node: SimNode, duration_ms: float) -> None:
        if node.current is not None:
            node.kill()
            self.world.after(duration_ms, self._restart, node)

    def _restart(self, node: SimNode) -> None:
        if node.current is None:
            node.start()

    def _trim(self, node: SimNode, amount: float) -> None:
        if node.current is not None and not node.current.is_paused:
            node.current.trim(amount)

    def _move(self, current: Incarnation, fault: Fault) -> None:
        for partition in list(current.logs)[:1]:
            current.hand_over(partition, self.nodes[fault.other].broker_id)

    def _cut(self, cut: set[int], fault: Fault) -> None:
        cut.add(fault.place)
        self.world.after(fault.duration_ms, cut.discard, fault.place)

    def _trouble_stores(self, fault: Fault) -> None:
        objects, amount = self.objects, fault.amount
        match fault.kind:
            case "items-unknown":
                self._set(self.items, "unknown", 0.2 + amount * 0.6, fault)
            case "items-refuse":
                self._set(self.items, "refusal", 0.3 + amount * 0.7, fault)
            case "objects-refuse":
                self._set(objects, "refusal", 0.2 + amount * 0.7, fault)
            case "objects-unknown":
                objects.late = amount
                self._set(objects, "unknown", 0.2 + amount * 0.6, fault)
            case "objects-conflict":
                self._set(objects, "conflict", 0.1 + amount * 0.5, fault)
            case "objects-double":
                self._set(objects, "doubling", 0.2 + amount * 0.6, fault)
            case "objects-tear":
                self._set(objects, "tearing", 0.2 + amount * 0.6, fault)
            case "objects-slow":
                self._set(objects, "delay_factor", 2 + amount * 8, fault, peace=1.0)

    def _set(
        self,
        part: SimObjects | SimItems,
        name: str,
        value: float,
        fault: Fault,
        *,
        peace: float = 0.0,
    ) -> None:
        setattr(part, name, value)
        self.world.after(fault.duration_ms, setattr, part, name, peace)

    def _heal(self) -> None:
        self.objects.heal()
        self.items.heal()
        for node in self.nodes:
            node.disk_fails_until_ms = 0.0
        for node in self.nodes:
            if node.current is None:
                node.start()
            elif node.current.is_paused:
                node.current.resume()


def run_plan(
    plan: Plan, rules: ChainRules | None = None, shell: Mutable | None = None
) -> RunReport:
    """Run a plan. Raises ``Violation`` with the seed in its message."""
    try:
        return Simulation(plan, rules, shell).run()
    except Violation as problem:
        raise Violation(f"seed {plan.seed}: {problem}") from problem
    except Exception as problem:
        problem.add_note(f"seed {plan.seed}")
        raise


def run_seed(seed: int, rules: ChainRules | None = None, shell: Mutable | None = None) -> RunReport:
    """Run the plan of a seed. Raises ``Violation`` with the seed in its message."""
    return run_plan(draw_plan(seed), rules, shell)


def shrink(plan: Plan, rules: ChainRules | None = None, shell: Mutable | None = None) -> Plan:
    """Return a plan with as few of the faults as still fail."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for index in range(len(plan.faults)):
            faults = plan.faults[:index] + plan.faults[index + 1 :]
            fewer = dataclasses.replace(plan, faults=faults)
            try:
                run_plan(fewer, rules, shell)
            except Violation:
                plan, is_smaller = fewer, True
                break
    return plan
