"""What a leader answers followers, consumers and producers of a replicated partition."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as list_request
from tidelog_core.errors import OutcomeUnknown
from tidelog_core.metadata.records import Partition, partition_key, put
from tidelog_core.wire_messages import build
from tidelog_node.replicas.replica import Replica

from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.support.request_contexts import context_of

LATEST, EARLIEST = -1, -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


async def list_offset(node: LedNode, name: int, *, replica_id: int = -1) -> Any:
    request = build(
        list_request.ListOffsetsRequest,
        replica_id=replica_id,
        topics=(
            build(
                list_request.ListOffsetsTopic,
                name=TOPIC,
                partitions=(
                    build(
                        list_request.ListOffsetsPartition,
                        partition_index=0,
                        current_leader_epoch=-1,
                        timestamp=name,
                    ),
                ),
            ),
        ),
    )
    context = context_of(11, api_key=2)
    response: Any = await node.list_offsets.handle(request, context)
    return response.topics[0].partitions[0]


async def test_acks_all_waits_for_every_replica_in_sync(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        first, second = node.send(b"a"), node.send(b"b")
        assert node.send(b"c", acks=1).base_offset == 2
        node.read(3, replica_id=2)
        await asyncio.sleep(0)
        assert not first.done()
        node.read(1, replica_id=3)
        assert (await first).base_offset == 0
        assert not second.done()
        node.read(2, replica_id=3)
        assert (await second).error_code is ErrorCode.none


async def test_consumers_see_what_is_committed_and_are_woken_by_it(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        assert not node.read(0).records
        assert node.read(0).high_watermark == 0
        held = node.read(0, max_wait_ms=120_000)
        node.read(1, replica_id=2)
        await asyncio.sleep(0.01)
        assert not held.done()
        node.read(1, replica_id=3)
        answer = await asyncio.wait_for(held, 60)
        assert answer.high_watermark == 1
        assert answer.records


async def test_consumers_are_woken_by_what_a_new_leader_commits_of_the_last_ones(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        await node.change_partition(leader=2, leader_epoch=1)
        await node.change_partition(leader=1, leader_epoch=2)
        held = node.read(0, leader_epoch=2, max_wait_ms=120_000)
        node.read(1, replica_id=2, leader_epoch=2, last_fetched_epoch=0)
        await asyncio.sleep(0.01)
        assert not held.done()
        node.read(1, replica_id=3, leader_epoch=2, last_fetched_epoch=0)
        assert (await asyncio.wait_for(held, 60)).records


async def test_followers_read_to_the_end_and_are_woken_by_appends(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        held = node.read(0, replica_id=2, max_wait_ms=120_000)
        await asyncio.sleep(0.01)
        assert not held.done()
        node.send(b"a", acks=1)
        answer = await asyncio.wait_for(held, 60)
        assert answer.records
        assert answer.high_watermark == 0


async def test_fetches_of_other_epochs_and_strangers_are_refused(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        await node.change_partition(leader_epoch=3)
        assert node.read(0, replica_id=2, leader_epoch=2).error_code is (
            ErrorCode.fenced_leader_epoch
        )
        assert node.read(0, replica_id=2, leader_epoch=4).error_code is (
            ErrorCode.unknown_leader_epoch
        )
        stranger = node.read(0, replica_id=9, replica_epoch=1, leader_epoch=3)
        assert stranger.error_code is ErrorCode.not_leader_or_follower
        assert node.read(0, replica_id=2, leader_epoch=3).error_code is ErrorCode.none
        earlier_life = node.read(0, replica_id=2, leader_epoch=3, replica_epoch=0)
        assert earlier_life.error_code is ErrorCode.not_leader_or_follower


async def test_a_follower_that_has_other_records_is_told_where_it_parts(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        await node.change_partition(leader=2, leader_epoch=1)
        await node.change_partition(leader=1, leader_epoch=2)
        node.send(b"b", acks=1)
        # It has three records of epoch 0, here that epoch ends after one.
        answer = node.read(3, replica_id=2, leader_epoch=2, last_fetched_epoch=0)
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
        assert not answer.records
        # It was not taken note of: nothing is committed by it.
        node.read(2, replica_id=3, leader_epoch=2, last_fetched_epoch=2)
        assert node.read(0, leader_epoch=2).high_watermark == 0


async def test_what_is_pending_fails_when_the_leadership_ends(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        pending = node.send(b"a")
        held = node.read(0, max_wait_ms=120_000)
        await node.change_partition(leader=2, leader_epoch=1)
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        answer = await asyncio.wait_for(held, 60)
        assert answer.error_code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.fenced_leader_epoch,
        )
        assert node.send(b"b").error_code is ErrorCode.not_leader_or_follower


async def test_a_request_learns_that_its_time_is_up(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        late = await asyncio.wait_for(node.send(b"a", timeout_ms=50), 60)
        assert late.error_code is ErrorCode.request_timed_out
        assert late.base_offset == 0


async def test_a_node_without_a_lease_answers_nothing(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic()
        pending = node.send(b"a")
        node.may_serve = False
        for answer in (node.send(b"b"), node.send(b"b", acks=1), node.read(0)):
            assert answer.error_code is ErrorCode.not_leader_or_follower
        assert node.read(1, replica_id=2).error_code is ErrorCode.not_leader_or_follower
        assert (await list_offset(node, EARLIEST)).error_code is (ErrorCode.not_leader_or_follower)
        assert replica.log.log_end_offset == 1
        node.may_serve = True
        node.read(1, replica_id=2)
        node.read(1, replica_id=3)
        assert (await pending).error_code is ErrorCode.none


async def test_too_few_in_sync_refuse_acks_all_alone(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(**{"min.insync.replicas": "2"})
        await node.change_partition(isr=(1,))
        assert node.send(b"a").error_code is ErrorCode.not_enough_replicas
        assert node.send(b"a", acks=1).base_offset == 0
        assert node.read(0).high_watermark == 0
        node.read(1, replica_id=2)
        await node.change_partition(isr=(1, 2))
        assert node.read(0).high_watermark == 1


async def test_a_write_waits_while_too_few_are_in_sync(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(**{"min.insync.replicas": "2"})
        pending = node.send(b"a")
        node.read(1, replica_id=2)
        await node.change_partition(isr=(1,))
        assert not pending.done()
        await node.change_partition(isr=(1, 2))
        assert (await pending).error_code is ErrorCode.none


async def test_a_new_leader_does_not_tell_the_end_before_it_knows_it(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        node.read(1, replica_id=2)
        node.read(1, replica_id=3)
        assert (await list_offset(node, LATEST)).offset == 1
    async with led_node(tmp_path) as node:
        assert (await list_offset(node, LATEST)).error_code is ErrorCode.offset_not_available
        assert (await list_offset(node, EARLIEST)).offset == 0
        assert (await list_offset(node, LATEST, replica_id=2)).offset == 1
        node.read(1, replica_id=2)
        node.read(1, replica_id=3)
        assert (await list_offset(node, LATEST)).offset == 1


async def test_a_new_leader_has_readers_wait_at_what_it_does_not_know_to_be_committed(
    tmp_path: Path,
) -> None:
    """Out of range would send them back to where their reset policy begins."""
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", b"b", b"c", acks=1)
        node.read(3, replica_id=2)
        node.read(3, replica_id=3)
        assert node.read(3).high_watermark == 3
    async with led_node(tmp_path) as node:
        assert node.read(0).high_watermark < 3
        for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
            for offset in range(4):
                answer = node.read(offset, isolation_level=isolation_level)
                assert (answer.error_code, answer.records) == (ErrorCode.none, b"")
            beyond = node.read(4, isolation_level=isolation_level)
            assert beyond.error_code is ErrorCode.offset_out_of_range
        held = node.read(2, max_wait_ms=120_000, isolation_level=READ_COMMITTED)
        node.read(3, replica_id=2)
        node.read(3, replica_id=3)
        assert (await asyncio.wait_for(held, 60)).records


async def test_consumers_are_sent_to_the_replica_of_their_rack(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        node.read(1, replica_id=2)
        node.read(0, replica_id=3)
        node.read(1, replica_id=3)
        answer = node.read(0, rack=b"rack2", max_wait_ms=120_000)
        assert answer.preferred_read_replica == 2
        assert not answer.records
        for rack in (b"rack1", b"rack9", b""):
            answer = node.read(0, rack=rack)
            assert answer.preferred_read_replica == -1
            assert answer.records
        await node.change_partition(isr=(1, 3))
        assert node.read(0, rack=b"rack2").preferred_read_replica == -1


async def test_a_follower_serves_consumers_what_it_knows_to_be_committed(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic()
        node.send(b"a", b"b", acks=1)
        node.send(b"c", acks=1)
        await node.change_partition(leader=2, leader_epoch=1)
        assert not node.read(0, leader_epoch=1).records
        held = node.read(0, leader_epoch=1, max_wait_ms=120_000)
        await asyncio.sleep(0.01)
        replica.follow_leader(high_watermark=2, log_start_offset=0)
        answer = await asyncio.wait_for(held, 60)
        assert answer.high_watermark == 2
        assert answer.records
        assert not node.read(2, leader_epoch=1).records
        assert node.read(0, leader_epoch=0).error_code is ErrorCode.fenced_leader_epoch
        assert node.read(0, leader_epoch=1, replica_id=3).error_code is (
            ErrorCode.not_leader_or_follower
        )


async def delete_records(node: LedNode, offset: int) -> Any:
    request = build(
        delete_request.DeleteRecordsRequest,
        topics=(
            build(
                delete_request.DeleteRecordsTopic,
                name=TOPIC,
                partitions=(
                    build(delete_request.DeleteRecordsPartition, partition_index=0, offset=offset),
                ),
            ),
        ),
    )
    context = context_of(2, api_key=21)
    response: Any = await node.delete_records.handle(request, context)
    return response.topics[0].partitions[0]


async def stored_start(node: LedNode) -> int:
    item = await node.store.get(partition_key(node.replica().topic_id, 0))
    assert item is not None
    return Partition.from_item(item).log_start_offset


async def test_a_deposed_leader_deletes_nothing(tmp_path: Path) -> None:
    """After an unclean election its high watermark is not the new leader's."""
    async with led_node(tmp_path) as node:
        replica = await node.create_topic()
        for number in range(3):
            node.send(b"%d" % number, acks=1)
        for follower in (2, 3):
            node.read(3, replica_id=follower)
        assert (await delete_records(node, 1)).low_watermark == 1
        partition = node.view.image.partition(replica.partition)
        assert partition is not None
        newer = Partition.from_item(await node.store.get(partition.item_id))  # type: ignore[arg-type]
        elected = dataclasses.replace(newer, leader=3, leader_epoch=1, isr=(3,))
        await node.store.commit([put(elected)])
        refused = await delete_records(node, 3)
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert await stored_start(node) == 1


async def test_records_are_deleted_also_where_the_store_loses_its_answer(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        for follower in (2, 3):
            node.read(1, replica_id=follower)
        commit, answers = node.store.commit, [OutcomeUnknown("the answer was lost")]

        async def answer_later(*arguments: Any, **named: Any) -> None:
            await commit(*arguments, **named)
            if answers:
                raise answers.pop()

        node.store.commit = answer_later  # type: ignore[method-assign]
        deleted = await delete_records(node, 1)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 1)
        assert await stored_start(node) == 1


async def test_a_fenced_leader_deletes_nothing(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
        for follower in (2, 3):
            node.read(1, replica_id=follower)
        node.may_serve = False
        refused = await delete_records(node, 1)
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert await stored_start(node) == 0


async def test_a_new_leader_keeps_back_what_the_last_one_has_deleted(tmp_path: Path) -> None:
    """The last leader may have answered before this follower had heard of the new start."""
    async with led_node(tmp_path) as node:
        replica = await node.create_topic()
        for number in range(3):
            node.send(b"%d" % number, acks=1)
        await node.change_partition(leader=2, leader_epoch=1)
        await node.change_partition(leader=2, log_start_offset=2)
        await node.change_partition(leader=1, leader_epoch=2, isr=(1, 2))
        assert (await list_offset(node, EARLIEST)).offset == 2
        assert node.read(1, leader_epoch=2).error_code is ErrorCode.offset_out_of_range
        assert replica.log.log_end_offset == 3


async def test_a_log_that_could_not_be_opened_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a disk that was full for a while: nothing else may happen to the topic."""
    async with led_node(tmp_path) as node:
        in_the_way = node.directories.path / f"{TOPIC}-0"
        in_the_way.write_text("")
        replica = await node.create_topic()
        for _ in range(5):
            node.replicas.follow_again(TOPIC)
        assert caplog.messages.count("log could not be opened, its partition is offline") == 1
        assert not replica.is_leader
        in_the_way.unlink()
        async with asyncio.timeout(60):
            while not replica.is_leader:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert node.send(b"a", acks=1).base_offset == 0


async def test_a_leader_that_was_alone_goes_on_while_it_gets_company(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        asked: list[Replica] = []
        node.replicas.roles.uncertain_lead.subscribe(asked.append)
        replica = await node.create_topic(replicas=(1,))
        assert node.send(b"a").base_offset == 0
        await node.change_partition(replicas=(1, 2), adding=(2,))
        assert node.send(b"b").base_offset == 1
        assert replica.log.high_watermark == 2
        assert not asked
