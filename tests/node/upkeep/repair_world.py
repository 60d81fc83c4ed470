"""A node with one damaged segment, and a leader that answers what the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tidelog_core.metadata.records import Partition
from tidelog_node.node_health import NodeHealth
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep.segment_repair import SegmentRepair

from tests.node.replication.led_node import LedNode, led_node
from tests.node.replication.scripted_leader import ScriptedLeader, scripted_leader
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS, HandChain

BATCH_COUNT = 4


class Tier:
    """Copies nothing."""

    @asynccontextmanager
    async def holding_copies(self, _: Replica) -> AsyncIterator[None]:
        yield


class CopylessTier(Tier):
    """Has no records either."""

    async def compacted_up_to(self, _: object) -> int | None:
        return None


class Mending:
    """A node whose log has three sealed segments, and a leader of it. Made by ``mending``."""

    def __init__(self, node: LedNode, leader: ScriptedLeader, replica: Replica) -> None:
        self.node, self.leader, self.replica = node, leader, replica
        self.health = NodeHealth()
        self.offered: list[tuple[int, ...]] = []  # the members that it would hand over to
        self.trouble: Exception | None = None  # what handing over raises
        self.repair = SegmentRepair(
            replace(node.context, health=self.health),
            replicas=node.replicas,
            tier=Tier(),
            directories=node.directories,
            hand_over=self._hand_over,
            busy=set(),
        )
        self.paths = [sealed.path for sealed in replica.log.sealed_segments()]
        self.whole = [path.read_bytes() for path in self.paths]

    def _hand_over(self, partition: Partition) -> bool:
        if self.trouble is not None:
            raise self.trouble
        self.offered.append(tuple(member for member in partition.isr if member != 1))
        return bool(self.offered[-1])

    async def follow(self, *, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        """Have the scripted leader lead."""
        epoch = self.replica.leader_epoch + 1
        await self.node.change_partition(leader=2, leader_epoch=epoch, isr=isr)

    async def lead(self, *, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        epoch = self.replica.leader_epoch + 1
        await self.node.change_partition(leader=1, leader_epoch=epoch, isr=isr)

    def damage(self, index: int) -> None:
        """Flip a byte in one of the sealed segments."""
        content = bytearray(self.whole[index])
        content[-1] ^= 1
        self.paths[index].write_bytes(content)

    async def attempt(self, index: int, *, times: int = 1) -> None:
        self.repair.suspect(self.replica.partition, int(self.paths[index].stem))
        for _ in range(times):
            await self.repair.attempt_due()


@asynccontextmanager
async def mending(folder: Path, *, is_diskless: bool = False) -> AsyncIterator[Mending]:
    async with led_node(folder) as node, scripted_leader(node) as leader:
        if is_diskless:
            replica = await node.create_topic(replicas=(1,), **DISKLESS)
            HandChain().enter(node.replicas, replica, 0)
        else:
            replica = await node.create_topic()
        for _ in range(BATCH_COUNT):
            replica.append(bytearray(batch_of(b"one")))
            replica.append(bytearray(batch_of(b"two")))
            replica.log.roll()
        log, leader.topic_id = replica.log, replica.topic_id.bytes
        log.flush()
        log.advance_high_watermark(log.log_end_offset)
        yield Mending(node, leader, replica)
