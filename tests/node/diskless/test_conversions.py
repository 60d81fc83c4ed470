"""One node converts a partition step by step; ``test_converting`` does it with real nodes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.epoch_chains import current_chain
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.metadata.epoch_chains import EpochChain, EpochChains
from tidelog_core.metadata.records import AckedBy, put
from tidelog_node.diskless.takeover.conversions import Conversions
from tidelog_node.replicas.replica import Replica
from tidelog_node.replication.leader_writes import LeaderWrites
from tidelog_node.tier.manifests import BucketManifests
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.markers import Marker

from tests.node.diskless.takeover_node import StoredChain, TakeoverNode, takeover_node
from tests.support.batches import batch_of
from tests.support.log_building import content_of, fill, start_unfilled

WISH = "diskless.enable"


class FilledChain(StoredChain):
    """Takes partitions whose logs have records above the first offset."""

    def take(
        self,
        replica: Replica,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int,
        tail_count: int,
    ) -> None:
        current = current_chain(stored)
        assert current is not None
        assert (current.chain, current.first_offset) == (self.name, end_offset)
        self._ends[replica] = end_offset
        replica.chain = self


class Converting:
    def __init__(self, it: TakeoverNode, replica: Replica) -> None:
        self.it, self.replica = it, replica
        it.chain = FilledChain(it.objects, it.cluster_id)
        node = it.node
        self.conversions = Conversions(
            node.replicas,
            own_chain=it.own_chain,
            manifests=BucketManifests(node.context, it.objects),
            flush=node.flusher.request,
        )
        self.writes = LeaderWrites(node.context, replicas=node.replicas, lag_time_max_ms=1_000)

    async def ask(self, value: str) -> None:
        await self.it.node.configure(**{"remote.storage.enable": "true", WISH: value})
        await self.conversions.visit()

    async def write(self) -> None:
        """Let the leader write what it may, and everybody see it."""
        await self.writes.check([self.replica])
        await self.it.node.view.refresh()

    async def become_diskless(self) -> None:
        await self.ask("true")
        await self.it.chain.commit(self.replica)
        await self.write()
        assert self.replica.is_diskless

    def send(self, value: bytes) -> asyncio.Future[object]:
        return asyncio.ensure_future(_answer(self.it.node.send(value)))


async def _answer(sent: object) -> object:
    return await sent if asyncio.isfuture(sent) else sent


@asynccontextmanager
async def replicated(folder: Path) -> AsyncIterator[Converting]:
    async with takeover_node(folder) as it:
        settings = {"remote.storage.enable": "true"}
        replica = await it.node.create_topic(replicas=(1,), **settings)
        yield Converting(it, replica)


async def test_a_partition_becomes_diskless_in_its_epoch(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        replica, chain = one.replica, one.it.chain
        await one.send(b"one")
        await one.ask("true")
        assert chain.noted == [(0, 1)]
        assert not replica.is_diskless
        sent = one.send(b"two")
        await asyncio.sleep(0)
        await one.write()
        assert not one.it.stored().is_diskless
        assert not sent.done()
        await chain.commit(replica)
        answer = await sent
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1)  # type: ignore[attr-defined]
        await one.write()
        stored = one.it.stored()
        assert stored.acked_by is AckedBy.CHAIN
        assert stored.wal == (EpochChain(0, chain.name, 0),)
        assert stored.leader_epoch == 0
        assert replica.is_diskless
        assert replica.is_leader
        assert replica in one.it.node.replicas.roles.led_by_chain
        third = one.send(b"three")
        await asyncio.sleep(0)
        assert not third.done()
        await chain.commit(replica)
        assert (await third).base_offset == 2  # type: ignore[attr-defined]


async def test_it_waits_while_the_tier_lacks_a_sealed_segment(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        await one.send(b"one")
        one.replica.log.roll()
        await one.send(b"two")
        await one.ask("true")
        assert one.replica.chain is None
        one.replica.log.set_tiered_up_to(1)
        await one.conversions.visit()
        assert one.it.chain.noted == [(1, 2)]
        await one.it.chain.commit(one.replica)
        await one.write()
        assert one.it.stored().wal == (EpochChain(0, one.it.chain.name, 1),)


async def test_a_chain_that_ends_before_leaves_the_replicas_alone(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        await one.ask("true")
        sent = one.send(b"one")
        await asyncio.sleep(0)
        assert not sent.done()
        first, first.is_deposed = one.it.chain, True
        one.it.node.replicas.end_lead(one.replica)
        assert (await sent).error_code is ErrorCode.none  # type: ignore[attr-defined]
        assert one.replica.chain is None
        # An epoch is in one chain: another one takes the next epoch.
        second = one.it.chain = FilledChain(one.it.objects, one.it.cluster_id)
        await one.conversions.visit()
        assert one.replica.chain is None
        await one.write()
        assert one.it.stored().leader_epoch == 1
        await one.conversions.visit()
        await second.commit(one.replica)
        await one.write()
        assert one.it.stored().wal == (EpochChain(1, second.name, 0),)
        assert second.name != first.name


async def test_a_partition_becomes_replicated_in_the_next_epoch(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        replica, log = one.replica, one.replica.log
        await one.send(b"one")
        await one.become_diskless()
        await one.ask("false")
        await one.write()
        stored = one.it.stored()
        assert stored.acked_by is AckedBy.REPLICAS
        assert (stored.leader_epoch, stored.isr) == (1, (1,))
        assert stored.wal != ()
        assert replica.chain is None
        assert not one.it.node.replicas.roles.led_by_chain
        answer = await one.send(b"two")
        assert answer.base_offset == 1  # type: ignore[attr-defined]
        # The item forgets the chain once the tier has what there was.
        await one.conversions.visit()
        await one.write()
        assert one.it.stored().wal != ()
        log.set_tiered_up_to(log.log_end_offset)
        await one.conversions.visit()
        await one.write()
        assert (one.it.stored().wal, one.it.stored().acked_by) == ((), None)
        assert not one.it.node.replicas.to_convert


async def test_a_log_that_is_not_filled_does_not_become_replicated(tmp_path: Path) -> None:
    """Followers would copy a log that lacks records, and the chains that have them are left."""
    async with replicated(tmp_path) as one:
        log = one.replica.log
        missing = await records_of(one, b"one")
        await one.become_diskless()
        start, end = 0, log.log_end_offset
        epochs, producers = log.leader_epochs, log.producers.at(end)
        log.truncate_to(start)
        snapshot = encode_snapshot(log.producers.state)
        start_unfilled(log, end, leader_epochs=epochs, producers=producers)
        await one.ask("false")
        await one.write()
        assert one.it.stored().is_diskless
        side = log.begin_filling(leader_epochs=(), producer_snapshot=snapshot)
        side.append_as_follower(memoryview(bytearray(missing)))
        fill(log, side)
        await one.conversions.visit()
        await one.write()
        assert one.it.stored().acked_by is AckedBy.REPLICAS
        assert content_of(log) == missing


async def records_of(one: Converting, value: bytes) -> bytes:
    """Send a record; return the log's bytes."""
    await one.send(value)
    return content_of(one.replica.log)


async def test_a_change_of_mind_is_followed_after_what_has_begun(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        await one.ask("true")
        await one.ask("false")
        await one.write()
        assert one.it.stored().is_diskless
        await one.conversions.visit()
        await one.write()
        assert not one.it.stored().is_diskless
        assert one.it.stored().leader_epoch == 1


async def test_a_partition_whose_chain_ends_before_is_led_on(tmp_path: Path) -> None:
    """Also if nobody wants it to be diskless any more, so that nothing is written."""
    async with replicated(tmp_path) as one:
        await one.ask("true")
        await one.ask("false")
        one.it.chain.is_deposed = True
        one.it.node.replicas.end_lead(one.replica)
        assert not one.it.node.replicas.to_convert
        answer = await one.send(b"one")
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)  # type: ignore[attr-defined]


async def test_a_chain_that_ends_while_a_replica_does_not_lead_is_not_waited_for(
    tmp_path: Path,
) -> None:
    async with replicated(tmp_path) as one:
        await one.ask("true")
        one.replica.is_leader = False  # Its log is being opened again, for example.
        one.it.node.replicas.end_lead(one.replica)
        assert one.replica.leader is not None
        assert not one.replica.leader.is_entering


async def test_an_older_image_takes_no_partition_out_of_its_chain(tmp_path: Path) -> None:
    async with replicated(tmp_path) as one:
        await one.send(b"one")
        await one.ask("true")
        await one.it.chain.commit(one.replica)
        await one.writes.check([one.replica])
        one.it.node.replicas.follow_again("t")  # It is diskless, and the image does not say so.
        assert not one.replica.is_diskless
        assert one.replica.chain is one.it.chain
        await one.it.node.view.refresh()
        assert one.replica.is_diskless
        assert one.replica.is_leader


async def test_a_partition_waits_for_what_its_chain_owes_of_an_earlier_epoch(
    tmp_path: Path,
) -> None:
    """Its commits would count as those of the present epoch."""
    async with replicated(tmp_path) as one:
        await one.send(b"one")
        one.it.chain.pending.add(one.replica)
        await one.ask("true")
        assert one.replica.chain is None
        one.it.chain.pending.clear()
        await one.conversions.visit()
        assert one.it.chain.noted == [(0, 1)]


async def test_a_log_start_that_only_this_node_knows_does_not_count(tmp_path: Path) -> None:
    """The next leader would miss the records below in tier and chain."""
    async with replicated(tmp_path) as one:
        await one.send(b"one")
        one.replica.log.roll()
        await one.send(b"two")
        one.replica.log.advance_log_start_offset(1)
        await one.ask("true")
        assert one.replica.chain is None
        await one.it.node.change_partition(log_start_offset=1)
        await one.conversions.visit()
        assert one.it.chain.noted == [(1, 2)]


async def test_a_partition_that_became_replicated_meanwhile_is_not_entered(tmp_path: Path) -> None:
    """The write had landed before its leader's chain ended, and no image shows it yet."""
    async with replicated(tmp_path) as one:
        await one.send(b"one")
        await one.become_diskless()
        item = dataclasses.replace(one.it.stored(), acked_by=AckedBy.REPLICAS, leader_epoch=1)
        await one.it.node.store.commit([put(item)])
        first, first.is_deposed = one.it.chain, True
        one.it.node.replicas.end_lead(one.replica)
        chains = ChainStore(one.it.objects, one.it.cluster_id)
        async with asyncio.timeout(60):
            while await chains.header(first.name, first.next_sequence) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await one.it.until(lambda: not one.it.takeovers._pending._entering)
        await one.it.node.view.refresh()
        assert one.replica.is_leader
        assert (one.it.stored().leader_epoch, one.it.chain.entered) == (1, [])
        assert (await one.send(b"two")).base_offset == 1  # type: ignore[attr-defined]


async def test_a_marker_that_is_sent_again_while_a_partition_enters_is_not_appended_again(
    tmp_path: Path,
) -> None:
    """It waits for the chain, too, and a coordinator sends it every few seconds."""
    async with replicated(tmp_path) as one:
        node, log = one.it.node, one.replica.log
        records = batch_of(b"a", producer=(7, 0, 0), is_transactional=True)
        one.replica.append(bytearray(records))
        await one.ask("true")
        offsets: Any = None  # of groups: none
        writer = MarkerWriter(
            node.context, replicas=node.replicas, flusher=node.flusher, offsets=offsets
        )
        marker = Marker(7, 0, True, 0, frozenset([one.replica.partition]))
        ending = [asyncio.create_task(writer.write([marker])) for _ in range(20)]
        await one.it.until(lambda: log.log_end_offset > 1)
        ending.append(asyncio.create_task(writer.write([marker])))
        for _ in range(100):  # turns of the loop
            await asyncio.sleep(0)
        assert log.log_end_offset == 2
        assert not any(task.done() for task in ending)
        await one.it.chain.commit(one.replica)
        for task in ending:
            assert set((await task).values()) == {ErrorCode.none}
        assert log.log_end_offset == 2
