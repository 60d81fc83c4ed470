"""A leader's log whose batches are in the objects of chains, and replicas to refill from them."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from uuid import UUID, uuid4

from tidelog_core.config import TopicConfig
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, WalSlice, refer_to
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.header import iter_headers
from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.role import ReplicaRole

from tests.support.batches import batch
from tests.support.clock import Clock
from tests.support.data_objects import build_data_object
from tests.support.log_building import PARTITION, content_of, marker, open_log

CLUSTER = "cluster-1"
TOPIC_ID = UUID("5f6dc6a4-35d9-4f1c-9d6c-1f0a3d3a9d11")
NAME = PartitionName(TOPIC_ID, PARTITION.partition)


def new_chain(broker_id: int = 1) -> ChainName:
    """Return the name of a chain that has no objects yet."""
    return ChainName(broker_id, uuid4())


@dataclasses.dataclass(slots=True)
class ChainedLog:
    """A log and the chains that have committed all of it."""

    log: LocalLog
    store: ObjectStore
    chains: EpochChains = ()
    ends: dict[ChainName, int] = dataclasses.field(default_factory=dict)

    def begin(self, leader_epoch: int, chain: ChainName) -> None:
        """Begin an epoch in the chain, where the log ends."""
        entry = EpochChain(leader_epoch, chain, self.log.log_end_offset)
        self.chains = (*self.chains, entry)
        self.ends.setdefault(chain, 0)
        self.log.assign_leader_epoch(leader_epoch)

    async def append(self, *batches: bytearray, sequence: int | None = None) -> int:
        """Append the batches and put them into the chain's next object; return its sequence."""
        entry = self.chains[-1]
        start = self.log.log_end_offset
        for one in batches:
            origin = AppendOrigin.CLIENT
            if one[22] & 0x20:  # a control batch
                origin = AppendOrigin.COORDINATOR
            self.log.append_as_leader(one, leader_epoch=entry.leader_epoch, origin=origin)
        self.log.advance_high_watermark(self.log.log_end_offset)
        data = bytes(self.bytes_from(start))
        return await self.put(data, sequence)

    async def put(self, data: bytes, sequence: int | None = None) -> int:
        """Put these batches of the current epoch into the chain."""
        entry = self.chains[-1]
        at = self.ends[entry.chain] if sequence is None else sequence
        name = ObjectName(CLUSTER, entry.chain, at, max(0, at - 2), 0, 0)
        built = build_data_object(
            name, [WalSlice(TOPIC_ID, PARTITION.partition, entry.leader_epoch, data)]
        )
        outcome = await ChainStore(self.store, CLUSTER).put(entry.chain, at, built.data)
        assert outcome is PutOutcome.STORED
        self.ends[entry.chain] = max(self.ends[entry.chain], at + 1)
        return at

    async def append_by_gateway(self, gateway: ChainName, *batches: bytearray) -> int:
        """Put each batch into a gateway's next object, and references to them into the chain.

        Then come the references' own appends, as a leader appends what it has read. Returns the
        sequence of the gateway's object.
        """
        entry = self.chains[-1]
        at = self.ends.setdefault(gateway, 0)
        foreign = [WalSlice(*NAME, -1, foreign_batches(one), is_foreign=True) for one in batches]
        built = build_data_object(ObjectName(CLUSTER, gateway, at, max(0, at - 2), 0, 0), foreign)
        chains = ChainStore(self.store, CLUSTER)
        assert await chains.put(gateway, at, built.data) is PutOutcome.STORED
        self.ends[gateway] = at + 1
        rows = parse_object(built.data, key="").slices
        references = [
            refer_to(
                one,
                gateway=gateway,
                sequence=at,
                position=row.position,
                leader_epoch=entry.leader_epoch,
                base_offset=self.log.append_as_leader(
                    bytearray(one.data), leader_epoch=entry.leader_epoch
                ).base_offset,
            )
            for one, row in zip(foreign, rows, strict=True)
        ]
        self.log.advance_high_watermark(self.log.log_end_offset)
        end = self.ends[entry.chain]
        name = ObjectName(CLUSTER, entry.chain, end, max(0, end - 2), 0, 0)
        referring = build_data_object(name, [], references=references)
        assert await chains.put(entry.chain, end, referring.data) is PutOutcome.STORED
        self.ends[entry.chain] = end + 1
        return at

    def bytes_from(self, offset: int) -> bytes:
        """Return the log's bytes from the batch with this offset on."""
        content = content_of(self.log)
        positions = [at for at, header in iter_headers(content) if header.base_offset >= offset]
        return content[positions[0] :] if positions else b""


async def filled(store: ObjectStore, folder: Path, *, seed: int = 0) -> ChainedLog:
    """Return a log of three epochs in three chains.

    It has an idempotent producer, a transaction that was committed, one that was aborted and one
    that is open.
    """
    chance = random.Random(seed)
    chained = ChainedLog(open_log(folder, segment_bytes=2_000), store)
    for turn, epoch in enumerate((1, 2, 5)):
        chained.begin(epoch, new_chain(epoch))
        for number in range(4):
            some = [batch(chance.randint(1, 3)) for _ in range(chance.randint(1, 3))]
            sequence = 4 * turn + number
            some.append(batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence))
            await chained.append(*some)
        await chained.append(
            batch(2, producer_id=epoch, producer_epoch=3, base_sequence=0, is_transactional=True),
            marker(is_commit=epoch == 1, producer_id=epoch, epoch=3),
        )
    await chained.append(
        batch(2, producer_id=70, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    await chained.append(batch(1))
    return chained


def replica_over(folder: Path, *, log_start_offset: int = 0) -> Replica:
    """Return a replica whose log has the files of the folder, if it has any."""

    def open_log_of(replica: Replica) -> LocalLog:
        return LocalLog.open(
            folder,
            PARTITION,
            config=replica.config,
            clock_ms=Clock(),
            log_start_offset=replica.log_start_offset,
        )

    replica = Replica(
        PARTITION,
        TOPIC_ID,
        config=TopicConfig(segment_bytes=2_000),
        log_start_offset=log_start_offset,
        open_log=open_log_of,
        changed=set(),
        troubled=set(),
        disk=DataDisk(),
        on_trouble=lambda _: None,
        on_offline=lambda _: None,
        on_exchanged=lambda _: None,
    )
    # With a role nothing in its files counts as committed.
    replica.role = ReplicaRole(
        1,
        clock_ms=lambda: 0.0,
        may_serve=lambda: True,
        wake_readers=replica.wake_readers,
        notify_waiters=replica.notify_waiters,
        wants_write=lambda: None,
    )
    return replica
