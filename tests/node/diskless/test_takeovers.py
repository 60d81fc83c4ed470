"""How a node comes to lead diskless partitions: new ones, its own of before, and other nodes'."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.header import WalKind
from tidelog_core.diskless.wal.keys import heirs_prefix, wal_key
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.metadata.store import Check, Item, ItemKey, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.keys import topic_manifest_key
from tidelog_core.tier.manifest import TopicManifest
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers
from tidelog_node.diskless.takeover.damaged_partitions import TRIES_MIN

from tests.node.diskless.chained_log import new_chain
from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)
    monkeypatch.setattr(pending_takeovers, "DAMAGED_SECONDS_MAX", 0.04)


async def test_a_new_partition_is_led_once_its_item_names_the_chain(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        await create(it)
        assert it.node.send(b"early").error_code is ErrorCode.not_leader_or_follower
        replica = await it.until_led()
        stored = it.stored()
        assert stored.leader_epoch == replica.leader_epoch == 1
        assert stored.wal == ((1, it.chain.name, 0),)
        assert it.chain.entered == [("t-0", 1, -1)]
        # The bucket knows the topic before it acknowledges anything.
        key = topic_manifest_key(it.cluster_id, "t", stored.topic_id)
        assert TopicManifest.parse(await it.objects.get(key), key=key).topic_id == stored.topic_id
        assert (await it.send(b"a")).base_offset == 0
        assert replica.log.high_watermark == 1


async def test_many_partitions_cost_few_writes(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        commits: list[int] = []
        commit = it.node.store.commit

        async def counted(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            commits.append(len(writes))
            await commit(writes, checks=checks)

        it.node.store.commit = counted  # type: ignore[method-assign]
        await create(it, partitions=79)
        await it.until(lambda: all(r.is_leader for r in it.node.replicas.replicas()))
        creation, *entries = commits
        assert (creation, sum(entries)) == (80, 79)
        assert len(entries) <= 10  # logs are opened a few at a time


@pytest.mark.parametrize("is_disk_lost", [False, True], ids=["disk kept", "disk lost"])
async def test_a_restarted_node_has_what_its_chain_before_committed(
    tmp_path: Path, is_disk_lost: bool
) -> None:
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        first = await it.send(b"a", b"b", producer=(7, 0, 0))
        before = it.chain
        it.node.send_batch(batch_of(b"never acknowledged", producer=(7, 0, 2)))
    if is_disk_lost:
        shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        replica = await it.until_led()
        assert it.stored().wal == ((1, before.name, 0), (2, it.chain.name, 2))
        assert it.chain.entered == [("t-0", 2, 1)]
        # The slice, and the chain before.
        assert it.chain.tail_counts == {"t-0": 1 + leader_takeover.EPOCH_OBJECTS}
        assert replica.log.log_end_offset == replica.log.high_watermark == 2
        assert replica.log.leader_epochs == ((1, 0), (2, 2))
        # The same batch again, then the next one.
        again = it.node.send_batch(batch_of(b"a", b"b", producer=(7, 0, 0)))
        assert again.base_offset == first.base_offset
        assert (await it.send(b"c", producer=(7, 0, 2))).base_offset == 2
        # Whoever still has the chain before meets the seal.
        header = await ChainStore(objects, it.cluster_id).header(before.name, 1)
        assert header is not None
        assert header.kind is WalKind.SEAL


async def test_a_deposed_leader_takes_its_partitions_into_another_chain(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        await create(it)
        replica = await it.until_led()
        await it.send(b"a")
        pending = it.node.send_batch(batch_of(b"b"))
        before, it.chain.is_deposed = it.chain, True
        it.node.replicas.end_lead(replica)
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        await it.until(lambda: replica.is_leader and it.chain is not before)
        assert [entry.leader_epoch for entry in it.stored().wal] == [1, 2]
        assert (await it.send(b"b")).base_offset == 1


@pytest.mark.parametrize("is_done", [False, True], ids=["not written", "written"])
async def test_a_write_of_unknown_outcome_is_read_again(tmp_path: Path, is_done: bool) -> None:
    async with takeover_node(tmp_path) as it:
        failures = [OutcomeUnknown("lost"), OutcomeUnknown("lost"), StoreUnavailable("away")]
        commit = it.node.store.commit

        async def unsure(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            error = failures.pop() if failures and writes[0].id.key.isdigit() else None
            if error is None or (is_done and isinstance(error, OutcomeUnknown)):
                await commit(writes, checks=checks)
            if error is not None:
                raise error

        await create(it)
        it.node.store.commit = unsure  # type: ignore[method-assign]
        replica = await it.until_led()
        assert [entry.chain for entry in it.stored().wal] == [it.chain.name]
        assert replica.leader_epoch == it.stored().wal[-1].leader_epoch


async def test_a_damaged_slice_keeps_its_partition_offline_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it, partitions=2)
        replicas = [await it.until_led(n) for n in range(2)]
        for replica in replicas:
            replica.append(bytearray(batch_of(b"kept")))
        await it.chain.commit(*replicas)
        key = wal_key(it.cluster_id, it.chain.name, 0)
    whole = await objects.get(key)
    broken = bytearray(whole)
    broken[112 + 61] ^= 1  # the first slice's
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(1)
        await it.until(lambda: it.chain_calls > 3)
        assert not it.replica(0).is_leader
        reasons = [
            str(vars(record)["reason"]) for record in caplog.records if "reason" in vars(record)
        ]
        assert any(key in reason and "partition=0" in reason for reason in reasons)
        await objects.replace(key, whole)
        await it.until_led(0)
        assert it.replica(0).log.log_end_offset == 1


async def test_a_damaged_footer_keeps_only_those_offline_that_it_may_concern(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows whose records the object has. Its own would be missing behind it."""
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it, partitions=4)
        replicas = [await it.until_led(n) for n in range(4)]
        # Partition 0 has records in the damaged object alone, 1 in both; 3 has none at all.
        for numbers in ((0, 1), (1, 2)):
            some = [replicas[number] for number in numbers]
            for replica in some:
                replica.append(bytearray(batch_of(b"kept")))
            await it.chain.commit(*some)
        key = wal_key(it.cluster_id, it.chain.name, 0)
    whole = await objects.get(key)
    broken = bytearray(whole)
    broken[-1] ^= 1
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(2)
        await it.until(lambda: it.chain_calls > 3)
        assert [it.replica(n).is_leader for n in range(4)] == [False, False, True, False]
        counters = it.node.context.counters
        assert counters.chain.damaged_count > 0
        messages = [one.getMessage() for one in caplog.records if key in str(vars(one))]
        assert "object of a chain is damaged" in messages
        await objects.replace(key, whole)
        for number in (0, 1, 3):
            await it.until_led(number)
        assert [it.replica(n).log.log_end_offset for n in range(4)] == [1, 2, 1, 0]


async def test_a_partition_that_is_tried_again_and_again_leaves_one_note(tmp_path: Path) -> None:
    """Its records are damaged for long, and the node's own chain goes on meanwhile."""
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it, partitions=2)
        replicas = [await it.until_led(n) for n in range(2)]
        for replica in replicas:
            replica.append(bytearray(batch_of(b"kept")))
        await it.chain.commit(*replicas)
        before = it.chain.name
        key = wal_key(it.cluster_id, before, 0)
    broken = bytearray(await objects.get(key))
    broken[112 + 61] ^= 1  # the first slice's
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(1)
        for _ in range(3):
            it.replica(1).append(bytearray(batch_of(b"more")))
            await it.chain.commit(it.replica(1))
            tries = it.chain_calls + 2
            await it.until(lambda tries=tries: it.chain_calls > tries)  # type: ignore[misc]
        assert not it.replica(0).is_leader
    notes = [meta.key async for meta in objects.list(heirs_prefix(it.cluster_id, before))]
    assert len(notes) == 1


async def leave_damaged(tmp_path: Path, objects: MemoryObjectStore) -> None:
    """Leave a partition whose only record is in a damaged object, and nothing on the disk."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        replica = await it.until_led()
        replica.append(bytearray(batch_of(b"kept")))
        await it.chain.commit(replica)
        key = wal_key(it.cluster_id, it.chain.name, 0)
    broken = bytearray(await objects.get(key))
    broken[112 + 61] ^= 1
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")


async def test_elections_begin_no_series_of_tries_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a partition that is damaged for long would be tried all the time in the end."""
    objects, tries = MemoryObjectStore(), list[float]()
    own_chain = TakeoverNode.own_chain

    async def timed(it: TakeoverNode) -> Any:
        tries.append(asyncio.get_running_loop().time())
        return await own_chain(it)

    monkeypatch.setattr(TakeoverNode, "own_chain", timed)
    await leave_damaged(tmp_path, objects)
    pause_s = 0.1
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", pause_s)
    monkeypatch.setattr(pending_takeovers, "DAMAGED_SECONDS_MAX", pause_s)
    async with takeover_node(tmp_path, objects) as it:
        for _ in range(8):
            count = len(tries)
            it.node.replicas.follow_again("t")
            await it.until(lambda count=count: len(tries) > count)  # type: ignore[misc]
        noted = len(tries)
        await it.until(lambda: len(tries) > noted + 4)
        # The last one may have been noted when a try was about to begin.
        pauses = [after - before for before, after in pairwise(tries[noted + 1 :])]
        assert min(pauses) >= 0.9 * pause_s


async def test_only_a_change_of_its_item_has_a_failed_partition_tried_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every change of its topic notes it: in a large topic it would be tried all the time."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 3_600.0)
    monkeypatch.setattr(pending_takeovers, "DAMAGED_SECONDS_MAX", 3_600.0)
    async with takeover_node(tmp_path, objects) as it:
        await it.until(lambda: bool(it.takeovers._pending._failed))
        assert it.chain_calls == 1
        for _ in range(20):
            it.node.replicas.follow_again("t")
            for _ in range(5):
                await asyncio.sleep(0)
        assert it.chain_calls == 1
        assert it.takeovers.has_unentered
        elected = dataclasses.replace(it.stored(), leader_epoch=it.stored().leader_epoch + 1)
        await it.node.store.commit([records.put(elected)])
        await it.node.view.refresh()
        await it.until(lambda: it.chain_calls == 2)


@pytest.mark.parametrize("fate", ["damaged", "missing"])
async def test_who_has_the_records_leads_whatever_became_of_the_gateways_object(
    tmp_path: Path, fate: str
) -> None:
    objects, gateway = MemoryObjectStore(), new_chain()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        replica = await it.until_led()
        replica.append(bytearray(batch_of(b"kept")))
        await it.chain.commit_by_gateway(gateway, replica)
        key = wal_key(it.cluster_id, gateway, 0)
    if fate == "damaged":
        await objects.replace(key, bytes(len(await objects.get(key))))
    else:
        await objects.delete([key])
    async with takeover_node(tmp_path, objects) as it:
        replica = await it.until_led()
        assert replica.log.log_end_offset == replica.log.high_watermark == 1
        assert (await it.send(b"more")).base_offset == 1


async def test_a_partition_that_is_damaged_here_is_given_to_each_other_process_once(
    tmp_path: Path,
) -> None:
    """Its replica may have the records: it has followed, or was the leader before."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    async with takeover_node(tmp_path, objects) as it:
        before = it.stored()

        async def store(changed: Partition | Broker) -> None:
            await it.node.store.commit([records.put(changed)])
            await it.node.view.refresh()

        async def is_led_by(broker_id: int) -> None:
            async with asyncio.timeout(60):
                while it.stored().leader != broker_id:
                    await asyncio.sleep(0.01)
                    await it.node.view.refresh()

        await store(dataclasses.replace(before, replicas=(1, 2)))
        await is_led_by(2)
        given = it.stored()
        assert (given.wal, given.leader_epoch) == (before.wal, before.leader_epoch + 1)
        await store(dataclasses.replace(given, leader=1, leader_epoch=given.leader_epoch + 1))
        calls = it.chain_calls
        await it.until(lambda: it.chain_calls > calls + 2 * TRIES_MIN)
        await it.node.view.refresh()
        assert it.stored().leader == 1
        broker = it.node.view.image.brokers[2]
        await store(dataclasses.replace(broker, incarnation=uuid4()))
        await is_led_by(2)


async def test_a_partition_that_was_led_since_is_given_to_the_same_process_again(
    tmp_path: Path,
) -> None:
    """It has had the records. Otherwise the partition would have no leader from then on."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    async with takeover_node(tmp_path, objects) as it:

        async def store(changed: Partition) -> None:
            await it.node.store.commit([records.put(changed)])
            await it.node.view.refresh()

        async def is_led_by(broker_id: int) -> None:
            async with asyncio.timeout(60):
                while it.stored().leader != broker_id:
                    await asyncio.sleep(0.01)
                    await it.node.view.refresh()

        await store(dataclasses.replace(it.stored(), replicas=(1, 2)))
        await is_led_by(2)
        given, calls = it.stored(), it.chain_calls
        epoch = given.leader_epoch
        entered = EpochChain(epoch + 1, ChainName(2, uuid4()), 1)
        handed_over = entered._replace(leader_epoch=epoch + 2)
        await store(
            dataclasses.replace(
                given, leader=1, leader_epoch=epoch + 2, wal=(*given.wal, entered, handed_over)
            )
        )
        await is_led_by(2)
        assert it.chain_calls >= calls + TRIES_MIN


async def test_who_has_led_last_gets_a_damaged_partition_first(tmp_path: Path) -> None:
    """Its log has what it has acknowledged, and it need not seal its own chain."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    async with takeover_node(tmp_path, objects) as it:
        before = it.stored()
        epoch = before.leader_epoch + 1
        handed_over = EpochChain(epoch, ChainName(2, uuid4()), 1)
        moved = dataclasses.replace(
            before, replicas=(1, 3, 2), leader_epoch=epoch, wal=(*before.wal, handed_over)
        )
        await it.node.store.commit([records.put(moved)])
        async with asyncio.timeout(60):
            while it.stored().leader == 1:
                await asyncio.sleep(0.01)
                await it.node.view.refresh()
        assert it.stored().leader == 2


async def test_a_leader_that_is_no_replica_any_more_gets_a_damaged_partition(
    tmp_path: Path,
) -> None:
    """Its node was down when the partition was taken over: the log is still on its disk."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    async with takeover_node(tmp_path, objects) as it:
        before = it.stored()
        epoch = before.leader_epoch + 1
        led_last = EpochChain(epoch, ChainName(2, uuid4()), 1)
        moved = dataclasses.replace(
            before, replicas=(1,), leader_epoch=epoch + 1, wal=(*before.wal, led_last)
        )
        await it.node.store.commit([records.put(moved)])
        async with asyncio.timeout(60):
            while it.stored().leader == 1:
                await asyncio.sleep(0.01)
                await it.node.view.refresh()
        assert (it.stored().leader, it.stored().replicas) == (2, (2,))


async def test_a_damaged_partition_is_given_away_although_it_is_being_reassigned(
    tmp_path: Path,
) -> None:
    """The reassignment would remove the replica that has the records, and is taken back."""
    objects = MemoryObjectStore()
    await leave_damaged(tmp_path, objects)
    async with takeover_node(tmp_path, objects) as it:
        moved = dataclasses.replace(
            it.stored(), replicas=(4, 1, 3), adding=(4,), removing=(1, 3)
        )  # Broker 4 is down.
        await it.node.store.commit([records.put(moved)])
        async with asyncio.timeout(60):
            while it.stored().leader == 1:
                await asyncio.sleep(0.01)
                await it.node.view.refresh()
        given = it.stored()
        assert (given.leader, given.replicas) == (3, (3, 1))
        assert (given.adding, given.removing) == ((), ())


async def test_a_partition_whose_log_cannot_be_opened_here_is_given_away(tmp_path: Path) -> None:
    """Its folder may have lost its permission, for example. Any other node can lead it."""
    async with takeover_node(tmp_path) as it:
        await create(it)
        await it.until_led()
        await it.send(b"kept")
    point = it.node.folder / "data" / "t-0" / "recovery-point"
    point.unlink()
    point.mkdir()
    async with takeover_node(tmp_path, it.objects) as again:
        await again.node.change_partition(replicas=(1, 2))
        async with asyncio.timeout(60):
            while again.stored().leader == 1:
                await asyncio.sleep(0.01)
                await again.node.view.refresh()
        assert again.stored().leader == 2


async def test_a_log_that_changes_in_the_meantime_is_not_entered(tmp_path: Path) -> None:
    """Its disk fails during the write, for example, and it is opened again."""
    async with takeover_node(tmp_path) as it:
        first, commit = it.chain, it.node.store.commit

        async def slow(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            await commit(writes, checks=checks)
            it.node.store.commit = commit  # type: ignore[method-assign]
            it.replica().log.append_as_leader(bytearray(batch_of(b"other")), leader_epoch=0)

        await create(it)
        it.node.store.commit = slow  # type: ignore[method-assign]
        replica = await it.until_led()
        assert first.entered == [("t-0", 2, -1)]  # not in epoch 1, which the item has named
        assert it.chain is first
        assert it.stored().wal == ((2, first.name, 0),)
        assert replica.log.log_end_offset == 0


async def test_partitions_enter_the_next_chain_at_once_if_theirs_ends_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has sealed it, or another group of partitions has ended it."""
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 3_600.0)
    async with takeover_node(tmp_path) as it:
        first = it.chain
        get_many = it.node.store.get_many

        async def late(ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
            first.is_deposed = True
            return await get_many(ids)

        it.node.store.get_many = late  # type: ignore[method-assign]
        await create(it)
        await it.until_led()
        assert it.chain is not first
        assert it.stored().wal == ((1, it.chain.name, 0),)  # no epoch names the ended one


async def test_a_chain_sealed_by_others_in_the_meantime_is_not_entered(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        first = it.chain
        commit = it.node.store.commit

        async def slow(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            await commit(writes, checks=checks)
            first.is_deposed = True

        await create(it)
        it.node.store.commit = slow  # type: ignore[method-assign]
        await it.until_led()
        assert not first.entered
        # The epoch in which nothing was written is named no longer.
        assert it.stored().wal == ((2, it.chain.name, 0),)
