"""A chain's owner and its heir without a node: objects by hand, by the rules of chains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ForeignSlice,
    ObjectName,
    WalSlice,
    build_seal,
)
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore

from tests.support.data_objects import build_data_object

CREATED_MS = 1_700_000_000_000


class ChainOwner:
    """Builds the objects of one chain, and puts them when it is told to."""

    def __init__(self, store: ObjectStore, cluster_id: str, chain: ChainName) -> None:
        self.chain = chain
        self.chains = ChainStore(store, cluster_id)
        self.committed_end = 0
        self.next_sequence = 0
        self.in_flight: dict[int, BuiltObject] = {}
        self.stored: dict[int, BuiltObject] = {}
        self._cluster_id = cluster_id
        self._previous_crc = 0

    def build(
        self, slices: Iterable[WalSlice], references: Iterable[ForeignSlice] = ()
    ) -> BuiltObject:
        """Build the next object; it is in flight until it is put."""
        built = build_data_object(
            self._name(self.next_sequence), list(slices), references=list(references)
        )
        self._previous_crc = built.header.crc
        self.in_flight[self.next_sequence] = built
        self.next_sequence += 1
        return built

    async def put(self, sequence: int) -> PutOutcome:
        """Put an object that is in flight, and move the committed end."""
        built = self.in_flight.pop(sequence)
        outcome = await self.chains.put(self.chain, sequence, built.data)
        if outcome is PutOutcome.STORED:
            self.stored[sequence] = built
            while self.committed_end in self.stored:
                self.committed_end += 1
        return outcome

    async def commit(
        self, slices: Iterable[WalSlice], references: Iterable[ForeignSlice] = ()
    ) -> int:
        """Build the next object and put it. Returns its sequence."""
        built = self.build(slices, references)
        assert await self.put(built.header.sequence) is PutOutcome.STORED
        return built.header.sequence

    async def commit_batches(
        self, partition: PartitionName, leader_epoch: int, *batches: bytes
    ) -> int:
        """Put an object with one slice. Returns its sequence."""
        return await self.commit([WalSlice(*partition, leader_epoch, b"".join(batches))])

    async def seal(self, heir: ChainName, *, at: int | None = None) -> PutOutcome:
        """Put a seal where the chain ends, as an heir does, or elsewhere: a late one."""
        sequence = self.committed_end if at is None else at
        before = self.stored.get(sequence - 1)
        previous_crc = 0 if before is None else before.header.crc
        name = ObjectName(
            self._cluster_id, self.chain, sequence, sequence, previous_crc, CREATED_MS
        )
        return await self.chains.put(self.chain, sequence, build_seal(name, heir).data)

    async def collect(self, sequences: Sequence[int]) -> None:
        """Delete objects."""
        await self.chains.delete(self.chain, sequences)

    def foreign(
        self, sequence: int, leader_epoch: int, base_offset: int, *, number: int = 0
    ) -> ForeignSlice:
        """Return a foreign slice of a stored object with offsets, for a leader's reference."""
        footer = parse_object(self.stored[sequence].data, key="foreign")
        rows = list(footer.slices)
        at = sum(row.batch_count for row in rows[:number])
        row = rows[number]
        batches = [footer.batches[n] for n in range(at, at + row.batch_count)]
        return ForeignSlice(self.chain, sequence, leader_epoch, base_offset, row, batches)

    def _name(self, sequence: int) -> ObjectName:
        return ObjectName(
            self._cluster_id,
            self.chain,
            sequence,
            self.committed_end,
            self._previous_crc,
            CREATED_MS,
        )


def chain_name(number: int) -> ChainName:
    """Return one of many names of chains, always the same."""
    return ChainName(number % 4 + 1, UUID(int=(0x5EED << 64) + number))
