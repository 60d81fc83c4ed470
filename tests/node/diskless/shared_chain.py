"""Leaders' logs whose batches share the objects of chains, and an heir that is killed and returns."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.header import ATTRIBUTES_POSITION, iter_headers
from tidelog_node.diskless.recovery.chain_slices import WantedSlices, find_slices, log_of
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.replicas.replica import Replica

from tests.node.diskless.chained_log import CLUSTER, TOPIC_ID, new_chain, replica_over
from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.data_objects import build_data_object
from tests.support.log_building import content_of, marker, open_log

SEGMENT_BYTES = 2_000
CONTROL = 0x20


class SharedChain:
    """The logs of partitions 0, 1, … and the objects that have committed all of them."""

    def __init__(self, folder: Path, store: ObjectStore, count: int) -> None:
        self.store = store
        self.logs = [open_log(folder / str(n), segment_bytes=SEGMENT_BYTES) for n in range(count)]
        self.chains: EpochChains = ()
        self.object_count = 0
        self._next = 0

    @property
    def names(self) -> list[PartitionName]:
        return [PartitionName(TOPIC_ID, number) for number in range(len(self.logs))]

    def begin(self, leader_epoch: int, chain: ChainName) -> None:
        """Begin an epoch of all partitions; their logs end at the same offset."""
        (end,) = {log.log_end_offset for log in self.logs}
        self.chains = (*self.chains, EpochChain(leader_epoch, chain, end))
        self._next = 0
        for log in self.logs:
            log.assign_leader_epoch(leader_epoch)

    async def put(self, appended: Mapping[int, list[bytearray]]) -> None:
        """Append to partitions, and put all of it into the next object."""
        entry, slices = self.chains[-1], []
        for number, batches in appended.items():
            log = self.logs[number]
            start = log.log_end_offset
            for one in batches:
                is_marker = bool(one[ATTRIBUTES_POSITION + 1] & CONTROL)
                origin = AppendOrigin.COORDINATOR if is_marker else AppendOrigin.CLIENT
                log.append_as_leader(one, leader_epoch=entry.leader_epoch, origin=origin)
            log.advance_high_watermark(log.log_end_offset)
            content = content_of(log)
            at = next(p for p, header in iter_headers(content) if header.base_offset >= start)
            slices.append(WalSlice(TOPIC_ID, number, entry.leader_epoch, content[at:]))
        name = ObjectName(CLUSTER, entry.chain, self._next, max(0, self._next - 2), 0, NOW_MS)
        data = build_data_object(name, slices).data
        outcome = await ChainStore(self.store, CLUSTER).put(entry.chain, self._next, data)
        assert outcome is PutOutcome.STORED
        self._next += 1
        self.object_count += 1

    async def fill(self, *, objects: int, seed: int = 0) -> None:
        """Put objects in two chains. Some transactions end, the last one of each log is open."""
        chance = Random(seed)
        numbers = range(len(self.logs))
        for turn in range(2 * objects):
            if turn % objects == 0:
                self.begin(1 + turn // objects, new_chain())
            await self.put({n: _some(chance, n, turn) for n in numbers})
        still_open = {"producer_id": 70, "producer_epoch": 0, "base_sequence": 0}
        await self.put({n: [batch(1, **still_open, is_transactional=True)] for n in numbers})

    async def tails(
        self, replicas: Mapping[PartitionName, Replica]
    ) -> dict[PartitionName, LogTail]:
        """Return what the chains have of the partitions."""
        wanted = {name: WantedSlices(self.chains, 0) for name in replicas}
        found = (await find_slices(ChainStore(self.store, CLUSTER), wanted, {})).slices
        return {
            name: LogTail(replica, *log_of(name, wanted[name], found[name], cluster_id=CLUSTER))
            for name, replica in replicas.items()
        }

    def heir(self, folder: Path) -> dict[PartitionName, Replica]:
        """Return replicas with what the folder has."""
        return {name: replica_over(folder / str(name.partition)) for name in self.names}

    def close(self) -> None:
        for log in self.logs:
            log.close()


def killed(folder: Path, after: Path) -> Path:
    """Return a copy of the folder, as ``kill -9`` leaves it at this moment."""
    shutil.copytree(folder, after)
    return after


def _some(chance: Random, partition: int, number: int) -> list[bytearray]:
    """Return batches of five offsets: of nobody, of an idempotent producer, and a transaction."""
    producer = {"producer_id": 100 + partition, "producer_epoch": 0, "base_sequence": number}
    return [
        batch(2, value_size_bytes=chance.randint(1, 60)),
        batch(1, producer_id=7, producer_epoch=0, base_sequence=number),
        batch(1, **producer, is_transactional=True),
        marker(is_commit=number % 2 == 1, producer_id=100 + partition, epoch=0),
    ]
