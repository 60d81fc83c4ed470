"""How each fault is done to a cluster, and undone.

``begin`` does it and returns what ends it. Whatever happens in between, ``undo_all``
leaves a cluster that nothing is wrong with but what the faults have done to its data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tidelog import Admin
from tidelog_core.errors import TidelogError
from tidelog_core.log.paths import LOG_SUFFIX

from tests.chaos.big_requests import NAMES, BigRequest
from tests.chaos.cluster import ChaosCluster, ChaosNode, NodeState, node_name
from tests.chaos.plan import FaultKind, PlannedFault
from tests.chaos.proxy import CLIENT, Behaviour
from tests.chaos.store_faults import (
    Undo,
    behaviour_of_bucket,
    behaviour_of_store,
    lock_sqlite,
    misbehave,
    mount,
    unmount,
)
from tests.chaos.torn import forget_boot, tear
from tests.faults.disk_faults import ALL_CALLS
from tests.support.store_proxy import STORE_PASSES

FILE_LIMIT_ROOM_BYTES = 4096
CLOCK_JUMP_SECONDS_MAX = 1800.0
CONVERT_SECONDS_MAX = 15.0  # to ask for it: other faults go on
TEAR_GAP_SECONDS = 15.0  # beyond the lease: the torn replica has caught up or has been removed

_DISK_FAULTS: dict[FaultKind, tuple[int, tuple[str, ...]]] = {
    FaultKind.DISK_FULL: (errno.ENOSPC, ("write",)),
    FaultKind.DISK_FAILING: (errno.EIO, ALL_CALLS),
}


class Faults:
    """Does faults to one cluster."""

    def __init__(
        self,
        cluster: ChaosCluster,
        *,
        lease_s: float,
        chance: random.Random,
        is_sabotage: bool = False,
        is_diskless: bool = False,
        is_converting: bool = False,
        topics: Sequence[str] = (),
    ) -> None:
        """``is_sabotage`` tears logs that nobody else has, which no replicated cluster can stand.

        With ``is_diskless`` any log may be torn or lost, unless ``is_converting``: the object store
        has it. ``topics`` are converted.
        """
        self._topics = topics
        self._diskless = set(topics if is_diskless else ())  # those that were asked to be so last
        self._may_lose_disks = is_diskless and not is_converting
        self._cluster = cluster
        self._lease_s = lease_s
        self._tears_any = is_sabotage or self._may_lose_disks
        self._chance = chance
        self._may_tear_at_s = 0.0
        self._by_kind: dict[FaultKind, Callable[[PlannedFault], Awaitable[Undo]]] = {
            FaultKind.KILL: self._kill,
            FaultKind.RESTART: self._restart,
            FaultKind.PAUSE: self._pause,
            FaultKind.PAUSE_MACHINE: self._pause,
            FaultKind.PAUSE_WORKERS: self._pause_workers,
            FaultKind.CLOCK: self._clock,
            FaultKind.FILE_LIMIT: self._file_limit,
            FaultKind.DISK_FULL: self._disk,
            FaultKind.DISK_FAILING: self._disk,
            FaultKind.TORN: self._torn,
            FaultKind.KILL_ALL: self._kill_all,
            FaultKind.DISK_LOST: self._disk_lost,
            FaultKind.CUT: self._network,
            FaultKind.HOLD: self._network,
            FaultKind.SLOW: self._network,
            FaultKind.RESET: self._reset,
            FaultKind.BIG_REQUEST: self._big_request,
            FaultKind.STORE_LOCK: self._store_lock,
            FaultKind.STORE_SLOW: self._store,
            FaultKind.STORE_FAILING: self._store,
            FaultKind.STORE_CUT: self._store,
            FaultKind.OBJECTS_SLOW: self._objects,
            FaultKind.OBJECTS_STORM: self._objects,
            FaultKind.OBJECTS_LATE: self._objects,
            FaultKind.OBJECTS_LOST: self._objects,
            FaultKind.OBJECTS_CUT: self._objects,
            FaultKind.OBJECTS_GONE: self._unmounted,
            FaultKind.OBJECTS_EMPTY: self._unmounted,
            FaultKind.CONVERT: self._convert,
        }

    async def begin(self, fault: PlannedFault) -> Undo:
        """Do the fault; the returned call ends it."""
        return await self._by_kind[fault.kind](fault)

    async def undo_all(self) -> None:
        """End whatever may still be on; every node runs on return."""
        mount(self._cluster.objects_dir)
        for node in self._cluster.nodes.values():
            node.proxy.heal()
            node.clock.set_off(0.0)
            node.disk.heal()
            for store in (node.store_proxy, node.object_proxy):
                if store is not None:
                    store.behave(STORE_PASSES)
            if node.state is NodeState.PAUSED:
                node.resume()
            node.resume_workers()
            if node.process.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    node.limit_files(None)
        down = [n for n in self._cluster.nodes.values() if n.process.process is None]
        await asyncio.gather(*(node.start() for node in down))

    def _targets(self, fault: PlannedFault) -> list[ChaosNode]:
        return [self._cluster.nodes[node_id] for node_id in fault.targets]

    # --- processes ---

    async def _kill(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        await asyncio.gather(*(node.kill() for node in nodes))
        return lambda: _start(nodes)

    async def _kill_all(self, fault: PlannedFault) -> Undo:
        """Kill every node; half of the times all disks are lost with them, if they may be."""
        if fault.amount < 0.5 or not self._may_lose_disks:
            return await self._kill(fault)
        return await self._disk_lost(fault)

    async def _disk_lost(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        await asyncio.gather(*(node.kill() for node in nodes))
        for node in nodes:
            lost = node.process.data_dir.with_name(f"{node.name}-lost")
            # Renamed first: its workers may still be ending, and write.
            await asyncio.to_thread(node.process.data_dir.rename, lost)
            await asyncio.to_thread(shutil.rmtree, lost, ignore_errors=True)

        async def undo() -> str:
            await _start(nodes)
            return "disks lost"

        return undo

    async def _restart(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        statuses = await asyncio.gather(*(node.stop() for node in nodes))
        for node, status in zip(nodes, statuses, strict=True):
            if status != 0:
                self._cluster.died.append(f"{node.name} stopped with status {status}")
        return lambda: _start(nodes)

    async def _pause(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        for node in nodes:
            if fault.kind is FaultKind.PAUSE_MACHINE:
                node.pause_workers()
            node.pause()

        async def undo() -> str:
            for node in nodes:
                node.resume()
                node.resume_workers()
            return ""

        return undo

    async def _pause_workers(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        count = sum(node.pause_workers() for node in nodes)

        async def undo() -> str:
            for node in nodes:
                node.resume_workers()
            return f"{count} workers"

        return undo

    async def _clock(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        jump_s = (fault.amount * 2 - 1) * CLOCK_JUMP_SECONDS_MAX
        for node in nodes:
            node.clock.set_off(jump_s)

        async def undo() -> str:
            for node in nodes:
                node.clock.set_off(0.0)
            return f"{jump_s:+.0f} s"

        return undo

    async def _disk(self, fault: PlannedFault) -> Undo:
        number, calls = _DISK_FAULTS[fault.kind]
        nodes = self._targets(fault)
        for node in nodes:
            node.disk.fail(number, calls, node.process.data_dir)

        async def undo() -> str:
            for node in nodes:
                node.disk.heal()
            return ""

        return undo

    async def _file_limit(self, fault: PlannedFault) -> Undo:
        nodes = self._targets(fault)
        for node in nodes:
            # Some active segments have grown past it, some are cut off in their next batches.
            sizes = sorted(_active_size_bytes(directory) for directory in node.partition_dirs())
            size = sizes[int(fault.amount * len(sizes))] if sizes else 0
            node.limit_files(size + self._chance.randrange(FILE_LIMIT_ROOM_BYTES))

        async def undo() -> str:
            for node in nodes:
                if node.process.process is not None:
                    node.limit_files(None)
            return ""

        return undo

    async def _torn(self, fault: PlannedFault) -> Undo:
        """Tear the logs of one node, if no partition has its records nowhere else."""
        (node,) = self._targets(fault)
        await node.kill()
        torn = 0
        loop = asyncio.get_running_loop()
        is_due = loop.time() >= self._may_tear_at_s
        if self._tears_any or (is_due and await self._others_have_it_all(node)):
            for directory in node.partition_dirs():
                if self._chance.random() < 0.8:
                    torn += tear(directory, self._chance)
            forget_boot(node.process.data_dir)

        async def undo() -> str:
            await node.start()
            self._may_tear_at_s = loop.time() + self._lease_s + TEAR_GAP_SECONDS
            return f"{torn} bytes"

        return undo

    async def _others_have_it_all(self, node: ChaosNode) -> bool:
        image = await self._cluster.image()
        return all(
            set(partition.isr) - {node.node_id}
            for partitions in image.partitions_by_topic.values()
            for partition in partitions
            if node.node_id in partition.isr
        )

    # --- network ---

    async def _network(self, fault: PlannedFault) -> Undo:
        nodes, amount = self._targets(fault), fault.amount
        match fault.kind:
            case FaultKind.CUT:
                behaviour = Behaviour(is_cut=True)
            case FaultKind.HOLD:
                behaviour = Behaviour(holds_requests=amount < 0.6, holds_answers=amount > 0.4)
            case _:
                rate = 20_000 + amount * 200_000
                behaviour = Behaviour(delay_s=amount * 0.5, bytes_per_s=rate)
        source = self._source(nodes)
        for node in nodes:
            node.proxy.behave(behaviour, source)

        async def undo() -> str:
            for node in nodes:
                node.proxy.heal(source)
            return _describe(behaviour, source)

        return undo

    def _source(self, targets: list[ChaosNode]) -> str | None:
        """Choose whose connections suffer: everyone's, the clients', or one other node's."""
        ids = {node.node_id for node in targets}
        others = [node_name(number) for number in self._cluster.nodes if number not in ids]
        return self._chance.choice([None, CLIENT, *others])

    async def _reset(self, fault: PlannedFault) -> Undo:
        for node in self._targets(fault):
            node.proxy.reset(after_bytes=int(fault.amount * 2000))
        return _nothing

    # --- clients ---

    async def _big_request(self, fault: PlannedFault) -> Undo:
        requests = []
        for node in self._targets(fault):
            request = BigRequest(self._chance.choice(NAMES))
            sending = asyncio.to_thread(request.send, node.proxy.port, fault.amount)
            requests.append((request, asyncio.create_task(sending)))

        async def undo() -> str:
            await asyncio.gather(*(sending for _, sending in requests))
            for request, _ in requests:
                request.close()
            return ", ".join(request.name for request, _ in requests)

        return undo

    async def _convert(self, fault: PlannedFault) -> Undo:
        """Ask for the other kind of a topic; half of the times change the mind at the end."""
        topic = self._chance.choice(self._topics)
        asked = await self._ask_for_other(topic)

        async def undo() -> str:
            again = await self._ask_for_other(topic) if fault.amount < 0.5 else ""
            return f"{topic} {asked} {again}".rstrip()

        return undo

    async def _ask_for_other(self, topic: str) -> str:
        is_diskless = topic not in self._diskless
        changes = {"diskless.enable": "true" if is_diskless else "false"}
        try:
            async with (
                asyncio.timeout(CONVERT_SECONDS_MAX),
                Admin(self._cluster.bootstrap) as admin,
            ):
                await admin.alter_configs("topic", topic, set=changes)
        except (TidelogError, TimeoutError, OSError) as error:
            return f"not asked: {type(error).__name__}"  # If it was, the next one asks again.
        (self._diskless.add if is_diskless else self._diskless.discard)(topic)
        return "diskless" if is_diskless else "replicated"

    # --- stores ---

    async def _store_lock(self, fault: PlannedFault) -> Undo:
        path = self._cluster.metadata_path
        assert path is not None
        return await lock_sqlite(path)

    async def _store(self, fault: PlannedFault) -> Undo:
        proxies = [node.store_proxy for node in self._targets(fault)]
        return misbehave(proxies, behaviour_of_store(fault))

    async def _objects(self, fault: PlannedFault) -> Undo:
        proxies = [node.object_proxy for node in self._targets(fault)]
        behaviour = behaviour_of_bucket(fault, lease_s=self._lease_s, chance=self._chance)
        return misbehave(proxies, behaviour)

    async def _unmounted(self, fault: PlannedFault) -> Undo:
        is_empty = fault.kind is FaultKind.OBJECTS_EMPTY
        return await unmount(self._cluster.objects_dir, is_empty=is_empty)


def _active_size_bytes(directory: Path) -> int:
    segments = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    return segments[-1].stat().st_size if segments else 0


async def _nothing() -> str:
    return ""


async def _start(nodes: list[ChaosNode]) -> str:
    await asyncio.gather(*(node.start() for node in nodes))
    return ""


def _describe(behaviour: Behaviour, source: str | None) -> str:
    words = [f"links of {source or 'everyone'}"]
    if behaviour.holds_requests:
        words.append("requests held")
    if behaviour.holds_answers:
        words.append("answers held")
    if behaviour.bytes_per_s is not None:
        words.append(f"{behaviour.delay_s:.2f} s, {behaviour.bytes_per_s / 1000:.0f} kB/s")
    return ", ".join(words)
