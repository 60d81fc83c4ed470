"""What chains need of every object store."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.tail.reader import TailReader
from tidelog_core.diskless.takeover.chain_sealer import (
    ChainSealer,
    ListChain,
    PutSeal,
    ReadHeaders,
    Sealed,
    SealerDecision,
)
from tidelog_core.diskless.wal.build import ObjectName, WalSlice, build_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import check_slice_bytes
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.objects.store import ObjectStore

from tests.support.chain_owner import ChainOwner
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CLUSTER, HEIR, TOPIC_ID, batch

STORED, TAKEN = PutOutcome.STORED, PutOutcome.TAKEN


class ChainStoreContract:
    """Subclasses give a ``store`` that is empty, or shared: every test has a chain of its own."""

    @pytest.fixture
    def chain(self) -> ChainName:
        return ChainName(3, uuid4())

    @pytest.fixture
    def chains(self, store: ObjectStore) -> ChainStore:
        return ChainStore(store, CLUSTER)

    def data(self, chain: ChainName, sequence: int, slice_count: int = 1) -> bytes:
        slices = [WalSlice(TOPIC_ID, n, 0, batch(sequence)) for n in range(slice_count)]
        return build_data_object(ObjectName(CLUSTER, chain, sequence, 0, 0, 0), slices).data

    async def test_of_two_writers_one_gets_the_place(
        self, chains: ChainStore, chain: ChainName
    ) -> None:
        seal = build_seal(ObjectName(CLUSTER, chain, 0, 0, 0, 0), HEIR).data
        outcomes = await asyncio.gather(
            *(chains.put(chain, 0, data) for data in (self.data(chain, 0), seal) * 4)
        )
        assert sorted(outcomes, key=str) == [STORED, *[TAKEN] * 7]
        header = await chains.header(chain, 0)
        assert header is not None
        assert await chains.put(chain, 0, seal) is TAKEN
        assert await chains.header(chain, 0) == header
        assert await chains.header(chain, 1) is None

    async def test_a_listing_has_what_was_put_before_from_any_sequence_on(
        self, chains: ChainStore, chain: ChainName
    ) -> None:
        for sequence in (0, 1, 2, 10, 9):
            assert await chains.put(chain, sequence, self.data(chain, sequence)) is STORED
            found = await chains.list(chain, sequence)
            assert sequence in [one.sequence for one in found]
        assert [one.sequence for one in await chains.list(chain)] == [0, 1, 2, 9, 10]
        assert [one.sequence for one in await chains.list(chain, 3)] == [9, 10]
        assert [one.sequence for one in await chains.list(chain, 10)] == [10]
        assert await chains.list(chain, 11) == []
        await chains.delete(chain, [1, 9, 5])
        assert [one.sequence for one in await chains.list(chain, 1)] == [2, 10]
        assert await chains.put(chain, 9, self.data(chain, 9)) is STORED

    async def test_a_footer_is_read_without_the_data(
        self, chains: ChainStore, chain: ChainName
    ) -> None:
        for sequence, slice_count in enumerate((1, 800)):  # the second one is longer than a read
            data = self.data(chain, sequence, slice_count)
            assert await chains.put(chain, sequence, data) is STORED
        for listed, slice_count in zip(await chains.list(chain), (1, 800), strict=True):
            footer = await chains.footer(chain, listed)
            assert len(footer.slices) == slice_count
            with pytest.raises(CorruptObject):
                await chains.footer(chain, listed._replace(size_bytes=listed.size_bytes - 1))
        await chains.delete(chain, [0])
        with pytest.raises(ObjectNotFound):
            await chains.footer(chain, listed._replace(sequence=0))

    async def test_an_object_in_anothers_place_is_refused(
        self, chains: ChainStore, chain: ChainName
    ) -> None:
        assert await chains.put(chain, 4, self.data(chain, 5)) is STORED
        (listed,) = await chains.list(chain)
        with pytest.raises(CorruptObject, match="sequence 5 instead of 4"):
            await chains.header(chain, 4)
        with pytest.raises(CorruptObject, match="sequence 5 instead of 4"):
            await chains.footer(chain, listed)

    async def test_two_heirs_at_once_find_one_end(
        self, chains: ChainStore, chain: ChainName
    ) -> None:
        for sequence in (0, 1, 3):
            await chains.put(chain, sequence, self.data(chain, sequence))
        ends = await asyncio.gather(*(_seal(chains, chain) for _ in range(3)))
        assert ends == [2, 2, 2]
        assert [one.sequence for one in await chains.list(chain)] == [0, 1, 2, 3]
        assert await chains.put(chain, 2, self.data(chain, 2)) is TAKEN  # the owner wakes up

    async def test_a_reader_follows_the_chain_by_one_listing_a_look(
        self, store: ObjectStore, chain: ChainName
    ) -> None:
        owner, name = ChainOwner(store, CLUSTER, chain), PartitionName(TOPIC_ID, 0)
        reader, chains = TailReader(owner.chains), (EpochChain(0, chain, 0),)
        for base_offset in range(0, 8, 2):
            await owner.commit_batches(name, 0, batch(base_offset))
            assert (await reader.refresh([name], [chain])).is_grown
            assert reader.view(name, 0, chains).end_offset == base_offset + 2
        await owner.collect([0, 1])
        await owner.seal(HEIR)
        for is_sealed in (False, True):
            found = await TailReader(owner.chains).refresh([name], [chain])
            assert (found.is_collected, found.is_sealed) == (True, True)
            assert (await reader.refresh([name], [chain])).is_sealed is is_sealed
        (last,) = reader.view(name, 6, chains).slices
        key = wal_key(CLUSTER, chain, last.sequence)
        data = await store.get_range(key, last.position, last.position + last.size_bytes)
        check_slice_bytes(data, last.crc32c, key=key, position=last.position)


async def _seal(chains: ChainStore, chain: ChainName) -> int:
    """Carry out a sealer's decisions."""
    sealer = ChainSealer(chain, now_ms=0.0)
    decisions: list[SealerDecision] = sealer.start()
    while True:
        match decisions.pop(0):
            case ListChain(start):
                found = await chains.list(chain, start)
                decisions += sealer.on_listed([one.sequence for one in found])
            case ReadHeaders(sequences):
                for sequence in sequences:
                    header = await chains.header(chain, sequence)
                    decisions += sealer.on_header(sequence, header)
            case PutSeal(sequence, previous_crc):
                place = ObjectName(CLUSTER, chain, sequence, sequence, previous_crc, 0)
                outcome = await chains.put(chain, sequence, build_seal(place, HEIR).data)
                decisions += sealer.on_seal_put(sequence, outcome, 0.0)
            case Sealed(end):
                return end
            case given_up:
                raise AssertionError(given_up)
