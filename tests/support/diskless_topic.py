"""A diskless topic's chains in a folder, written without a node, and the items that name them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.metadata.records import Partition, Topic, partition_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.support.chain_owner import CREATED_MS, ChainOwner

T = TypeVar("T")

DISKLESS = {"diskless.enable": "true"}


class DisklessTopic:
    """Owners of the topic's chains. ``close`` ends it."""

    def __init__(self, topic: Topic, cluster_id: str, *, database: Path, objects: Path) -> None:
        self.topic = topic
        self.store = FolderObjectStore(objects)
        self.owners: dict[ChainName, ChainOwner] = {}
        self._cluster_id = cluster_id
        self._database = database
        self._chains: dict[int, EpochChains] = {}
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Close the folder."""
        self.run(self.store.close())
        self._runner.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the call's answer."""
        return self._runner.run(call)

    def enter(
        self, chain: ChainName, *, partition: int = 0, epoch: int = 0, first_offset: int = 0
    ) -> ChainOwner:
        """Let a partition into a chain, as its item says from then on."""
        owner = self.owners.get(chain)
        if owner is None:
            owner = self.owners[chain] = ChainOwner(self.store, self._cluster_id, chain)
        before = self._chains.get(partition, ())
        self._chains[partition] = (*before, EpochChain(epoch, chain, first_offset))
        self.write_item(partition)
        return owner

    def write_item(self, partition: int = 0, *, log_start_offset: int = 0) -> None:
        """Store the partition's item."""
        chains = self._chains[partition]
        item = Partition(
            topic_id=self.topic.topic_id,
            partition=partition,
            replicas=(1,),
            leader=1,
            leader_epoch=chains[-1].leader_epoch,
            isr=(1,),
            log_start_offset=log_start_offset,
            wal=chains,
        )
        self.run(self._write(item))

    def forget_tiered_epochs(self, count: int, partition: int = 0) -> None:
        """Take the oldest epochs out of the partition's item: the tier has their records."""
        self._chains[partition] = self._chains[partition][count:]
        self.write_item(partition)

    def name(self, partition: int = 0) -> PartitionName:
        """Return the partition's name in chains."""
        return PartitionName(self.topic.topic_id, partition)

    def commit(self, chain: ChainName, *batches: bytes, partition: int = 0, epoch: int = 0) -> int:
        """Put an object with these batches of a partition. Returns its sequence."""
        owner = self.owners[chain]
        return self.run(owner.commit_batches(self.name(partition), epoch, *batches))

    async def _write(self, item: Partition) -> None:
        store = SqliteMetadataStore(self._database)
        try:
            key = partition_key(item.topic_id, item.partition)
            await store.commit([Write(key, item.to_body(), ANY_VERSION)])
        finally:
            await store.close()


def numbered(start: int, end: int, *, producer_id: int = -1, **fields: Any) -> bytes:
    """Return a batch of offsets ``[start, end)``: values are ``v<offset>``, times 1000 + offset.

    With a producer it is transactional.
    """
    if producer_id >= 0:
        fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": start}
        fields |= {"is_transactional": True}
    records = [Record(0, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(start, end)]
    return build_batch(records, base_offset=start, **fields)


def end_marker(offset: int, producer_id: int, *, is_commit: bool) -> bytes:
    """Return the control batch that ends the producer's transaction."""
    return build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT if is_commit else ControlType.ABORT, 1),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=CREATED_MS,
        base_offset=offset,
        leader_epoch=0,
    )
