"""A partition that its leader has handed over is led without a seal: the leader's chain goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.header import WalKind
from tidelog_core.metadata.epoch_chains import EpochChain, end_epoch
from tidelog_core.metadata.records import segment_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.records.header import patch
from tidelog_node.diskless.recovery.log_recovery import TierEnds
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers

from tests.node.diskless.chained_log import new_chain
from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of
from tests.support.data_objects import build_data_object

DONOR = 2


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)


class Donor:
    """The chain of another broker, which leads partition 0 in epoch 2 and goes on afterwards."""

    def __init__(self, it: TakeoverNode) -> None:
        self.it = it
        self.chain = new_chain(DONOR)
        self.store = ChainStore(it.objects, it.cluster_id)
        self.next_sequence = self.end_offset = 0

    async def lead(self, *, epoch: int = 2, replicas: tuple[int, ...] = (DONOR,)) -> None:
        before = self.it.stored().wal if epoch > 2 else ()
        await self.it.node.change_partition(
            leader=DONOR,
            replicas=replicas,
            isr=replicas,
            leader_epoch=epoch,
            wal=(*before, EpochChain(epoch, self.chain, self.end_offset)),
        )

    async def put(self, *values: bytes, partition: int = 0, producer: Any = None) -> None:
        """Commit one batch, in an object of its own."""
        data = bytearray(batch_of(*values, **({} if producer is None else {"producer": producer})))
        if partition == 0:
            patch(data, 0, base_offset=self.end_offset, leader_epoch=2)
            self.end_offset += len(values)
        sequence = self.next_sequence
        name = ObjectName(self.it.cluster_id, self.chain, sequence, sequence, 0, 0)
        slices = [WalSlice(self.it.stored().topic_id, partition, 2, bytes(data))]
        put = await self.store.put(self.chain, sequence, build_data_object(name, slices).data)
        assert put is PutOutcome.STORED
        self.next_sequence += 1

    async def hand_over(
        self, *, epoch: int = 2, epochs: int = 1, end_offset: int | None = None
    ) -> None:
        """Write the item as a leader that hands over does; more epochs: others were elected."""
        end_offset = self.end_offset if end_offset is None else end_offset
        await self.it.node.change_partition(
            leader=1,
            replicas=(1,),
            isr=(1,),
            leader_epoch=epoch + epochs,
            wal=end_epoch(self.it.stored().wal, end_offset, next_epoch=epoch + 1),
        )


async def donor_of(it: TakeoverNode) -> Donor:
    await create(it)
    await it.until_led()
    donor = Donor(it)
    await donor.lead()
    await donor.put(b"a", b"b", producer=(7, 0, 0))
    await donor.put(b"other", partition=5)
    return donor


async def test_the_leader_before_goes_on_in_its_chain(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        donor = await donor_of(it)
        await donor.hand_over()
        replica = await it.until_led()
        stored = it.stored()
        assert stored.leader_epoch == replica.leader_epoch == 4
        assert stored.wal == (
            EpochChain(2, donor.chain, 0),
            EpochChain(3, donor.chain, 2),
            EpochChain(4, it.chain.name, 2),
        )
        assert it.chain.entered[-1] == ("t-0", 4, -1)
        await donor.put(b"more", partition=5)  # No seal is in its way.
        # Metadata of before that are set back lead to the chain that goes on with the partition.
        assert [heir.chain for heir in await donor.store.heirs(donor.chain)] == [it.chain.name]
        again = it.node.send_batch(batch_of(b"a", b"b", producer=(7, 0, 0)))
        assert again.base_offset == 0
        assert (await it.send(b"c", producer=(7, 0, 2))).base_offset == 2


async def test_after_another_election_the_chain_is_sealed(tmp_path: Path) -> None:
    """The broker that the leader had chosen is gone, or the metadata were set back since."""
    async with takeover_node(tmp_path) as it:
        donor = await donor_of(it)
        await donor.hand_over(epochs=2)
        replica = await it.until_led()
        assert replica.log.log_end_offset == 2
        assert it.chain.entered[-1] == ("t-0", 5, 2)
        header = await donor.store.header(donor.chain, 2)
        assert header is not None
        assert header.kind is WalKind.SEAL


async def test_an_end_that_the_chain_does_not_reach_is_not_led(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with takeover_node(tmp_path) as it:
        donor = await donor_of(it)
        await donor.hand_over(end_offset=3)
        await it.until(lambda: "diskless partition cannot be recovered" in caplog.text)
        assert not it.replica().is_leader
        await donor.put(b"c")  # The object is there after all.
        replica = await it.until_led()
        assert replica.log.log_end_offset == 3


async def test_what_this_node_has_followed_to_its_end_is_not_read_again(tmp_path: Path) -> None:
    """The objects are gone here, so reading them would fail."""
    async with takeover_node(tmp_path) as it:
        donor = await donor_of(it)
        await donor.hand_over()
        replica = await it.until_led()
        await donor.lead(epoch=5, replicas=(DONOR, 1))
        assert replica.log.high_watermark == 2
        await donor.store.delete(donor.chain, [0, 1])
        await donor.hand_over(epoch=5)
        await it.until_led()
        assert it.stored().wal[-2:] == (
            EpochChain(6, donor.chain, 2),
            EpochChain(7, it.chain.name, 2),
        )


async def test_a_damaged_item_of_a_followed_partitions_tier_holds_up_no_other(
    tmp_path: Path,
) -> None:
    async with takeover_node(tmp_path) as it:
        await create(it, partitions=2)
        for number in range(2):
            await it.until_led(number)
        records = {it.replica(number).name: it.stored(number) for number in range(2)}
        damaged, whole = records
        key = segment_key(*damaged, 0, UUID(int=1))
        await it.node.store.commit([Write(key, {"nonsense": 1}, ANY_VERSION, False)])
        assert await it.recovery.tier_ends(records) == {whole: TierEnds(0, -1)}


async def test_a_partition_whose_successor_never_entered_is_taken_back_without_a_seal(
    tmp_path: Path,
) -> None:
    async with takeover_node(tmp_path) as it:
        await create(it)
        replica, first = await it.until_led(), it.chain
        await it.send(b"a")
        wal = end_epoch(it.stored().wal, 1, next_epoch=2)
        await it.node.change_partition(leader=DONOR, leader_epoch=2, wal=wal)
        assert not replica.is_leader
        await it.node.change_partition(leader=1, leader_epoch=3)  # The other one is gone.
        await it.until_led()
        assert it.chain is first
        assert [one.chain for one in it.stored().wal] == [first.name] * 3
        assert it.stored().leader_epoch == 4
        assert (await it.send(b"b")).base_offset == 1
        assert await first_seal(it, first.next_sequence) is None


async def first_seal(it: TakeoverNode, sequence: int) -> Any:
    """Return the header in the next place of the node's own chain."""
    return await ChainStore(it.objects, it.cluster_id).header(it.chain.name, sequence)
