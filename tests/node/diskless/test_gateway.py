"""A gateway and its leader: offsets, order, retries, and what happens when either is in trouble."""

from __future__ import annotations

import asyncio
import dataclasses
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.diskless.chain.noted_ranges import REFERENCE_BATCH_BYTES, REFERENCE_BYTES
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import ErrorCode
from tidelog_core.records.header import iter_headers
from tidelog_node.answers import CloseConnection
from tidelog_node.diskless.gateway import gateway_objects, links, pending_batches
from tidelog_node.diskless.recovery import slice_reads
from tidelog_node.handlers.produce import gateway_append
from tidelog_node.monitoring.gateway_source import GatewaySource
from tidelog_node.monitoring.scrape import HistogramValue, Scrape
from tidelog_node.requests.session import NO_NODE
from tidelog_node.wire.gateway_append import (
    TRANSACTIONAL_ID_BYTES_MAX,
    GatewayAppend,
    GatewaySlice,
    parse_answer,
)

from tests.node.diskless.gateway_world import (
    CHAIN_OF,
    GATEWAY,
    LEADER,
    TOPIC_ID,
    World,
    gateway_world,
)
from tests.support.batches import batch
from tests.support.request_contexts import context_of
from tests.support.waiting import eventually_async
from tests.support.wal_scene import Faults

OK, MOVED = ErrorCode.none, ErrorCode.not_leader_or_follower
READ_IN = str(slice_reads.__file__)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as world:
        yield world


def numbered(sequence: int, count: int = 1, producer_id: int = 7) -> bytearray:
    """Return a batch of an idempotent producer."""
    return batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def given(answer: Any) -> tuple[ErrorCode, int]:
    return answer.error_code, answer.base_offset


async def test_batches_get_offsets_in_line_with_those_of_the_leader(world: World) -> None:
    answers = []
    for count in (2, 1, 3):
        answers.append(await world.gateway.send(batch(count)))
        answers.append(await world.leader.send(batch(count)))
    assert [given(answer) for answer in answers] == [(OK, offset) for offset in (0, 2, 4, 5, 6, 9)]
    log = world.leader.replica.log
    assert log.high_watermark == log.log_end_offset == 12
    headers = [header for _, header in iter_headers(world.log_content())]
    assert [header.base_offset for header in headers] == [0, 2, 4, 5, 6, 9]
    assert {header.partition_leader_epoch for header in headers} == {0}
    # The leader's chain has the bytes of its own batches, and references to the others.
    sizes = [header.size_bytes for header in headers]
    assert world.gateway.traffic.object_bytes == sum(sizes[0::2])
    references = 3 * (REFERENCE_BYTES + REFERENCE_BATCH_BYTES)
    assert world.leader.traffic.object_bytes == sum(sizes[1::2]) + references
    assert len(world.forwarded) == 3


@pytest.mark.parametrize("acks", [1, -1])
async def test_nothing_is_answered_before_both_objects_are_stored(world: World, acks: int) -> None:
    world.store.held.clear()
    answer = world.gateway.send(batch(1), acks=acks)
    await eventually_async(lambda: world.store.put_count == 1)
    assert world.forwarded == []
    world.store.held.set()
    assert given(await answer) == (OK, 0)
    assert world.store.put_count >= 2


async def test_acks_0_has_no_answer_and_is_appended(world: World) -> None:
    assert world.gateway.send(batch(1), acks=0) is None
    log = world.leader.replica.log
    await eventually_async(lambda: log.high_watermark == 1)


async def test_a_producer_stays_in_order_whatever_the_store_does(world: World) -> None:
    world.store.faults = Faults(refused=0.1, lost=0.2, vanished=0.1, slow_s=0.003)
    answers = []
    for sequence in range(60):
        answers.append(world.gateway.send(numbered(sequence)))
        if sequence % 7 == 0:
            await asyncio.sleep(0.004)
    found = [given(await answer) for answer in answers]
    assert found == [(OK, offset) for offset in range(60)]


@pytest.mark.parametrize("first", ["gateway", "leader"])
@pytest.mark.parametrize("second", ["gateway", "leader"])
async def test_a_retry_by_any_way_gets_the_old_offset(
    world: World, first: str, second: str
) -> None:
    await world.leader.send(batch(3))
    sent = await getattr(world, first).send(numbered(0, 2))
    again = await getattr(world, second).send(numbered(0, 2))
    assert given(sent) == given(again) == (OK, 3)
    assert world.leader.replica.log.log_end_offset == 5
    skipped = await world.gateway.send(numbered(5))
    assert skipped.error_code is ErrorCode.not_leader_or_follower


async def test_a_transaction_is_verified_by_the_leader_and_stays_in_order(world: World) -> None:
    def part(sequence: int) -> bytearray:
        return batch(
            1, producer_id=9, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )

    answers = [world.gateway.send(part(n), transactional_id=b"tx") for n in range(5)]
    assert [given(await answer) for answer in answers] == [(OK, n) for n in range(5)]
    assert world.leader.verifier.asked[0] == ("tx", 9)
    assert world.gateway.verifier.asked == []
    assert world.leader.replica.log.last_stable_offset == 0
    refused = await world.gateway.send(part(5))
    assert refused.error_code is ErrorCode.transactional_id_authorization_failed


async def test_a_transactional_id_that_no_leader_reads_is_refused_at_once(world: World) -> None:
    """A leader that got it would close the connection, with all that is under way on it."""
    for size, code in ((TRANSACTIONAL_ID_BYTES_MAX, OK), (5_000, ErrorCode.invalid_request)):
        answer = await world.gateway.send(batch(1), transactional_id=b"x" * size)
        assert answer.error_code is code
    assert len(world.forwarded) == 1


async def test_a_batch_waits_for_a_leader_that_is_away(world: World) -> None:
    world.is_leader_reachable = False
    answers = [world.gateway.send(numbered(n)) for n in range(3)]
    await eventually_async(lambda: world.gateway.chain.committed_end > 0)
    world.is_leader_reachable = True
    assert [given(await answer) for answer in answers] == [(OK, n) for n in range(3)]


async def test_a_batch_waits_for_a_leader_that_has_not_entered_yet(world: World) -> None:
    replica = world.leader.replica
    world.leader.chain.leave(replica)
    world.leader.replicas.end_lead(replica)
    answers = [world.gateway.send(numbered(n)) for n in range(3)]
    await eventually_async(lambda: len(world.forwarded) >= 1)
    assert replica.log.log_end_offset == 0
    await world.begin_epoch()
    assert [given(await answer) for answer in answers] == [(OK, n) for n in range(3)]


async def test_waiting_batches_of_several_partitions_are_forwarded_in_order(
    tmp_path: Path,
) -> None:
    """They are sent object by object: an object may be met first by another partition's batch."""
    world = World(tmp_path)
    world.partition_count = 2
    await world.start()
    try:
        world.is_leader_reachable = False
        answers = []
        for sent in ([(1, 0)], [(0, 0)], [(1, 1), (0, 1)]):
            answers += [world.gateway.send(numbered(n), partition=index) for index, n in sent]
            end = world.gateway.chain.committed_end
            await eventually_async(lambda end=end: world.gateway.chain.committed_end > end)
        world.is_leader_reachable = True
        assert [given(await answer) for answer in answers] == [(OK, 0), (OK, 0), (OK, 1), (OK, 1)]
        for index in range(2):
            sequences = [
                request.sequence
                for request in world.forwarded
                for one in request.slices
                if one.partition == index
            ]
            assert len(sequences) == 2
            assert sequences == sorted(sequences)
    finally:
        await world.stop()


async def test_without_a_leader_the_producer_looks_for_another(world: World) -> None:
    world.is_leader_reachable = False
    answer = await world.gateway.send(batch(1), timeout_ms=0)
    assert answer.error_code in (ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out)


async def test_an_answer_that_is_lost_is_repeated_with_the_old_offset(world: World) -> None:
    world.is_answer_lost = True
    lost = await world.gateway.send(numbered(0, 2))
    assert lost.error_code is ErrorCode.not_leader_or_follower
    world.is_answer_lost = False
    assert given(await world.gateway.send(numbered(0, 2))) == (OK, 0)
    assert world.leader.replica.log.log_end_offset == 2


async def test_what_a_lost_answer_may_refer_to_stays_until_the_tier_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the leader knows where such a reference ends."""
    monkeypatch.setattr(gateway_objects, "REFERENCE_SECONDS_MAX", 0.0)
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        world.is_leader_silent = world.is_answer_lost = True
        lost = await world.gateway.send(numbered(0))
        assert lost.error_code is ErrorCode.not_leader_or_follower
        world.is_answer_lost = False
        assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 1)
        await eventually_async(lambda: world.ask_count > 1)
        committed, name = world.gateway.chain.committed, PartitionName(TOPIC_ID, 0)
        assert committed.collectable(UnneededEnds({name: 2})) == []
        world.is_leader_silent = False
        objects = world.gateway.gateway._objects
        await eventually_async(lambda: not objects._unknown)
        assert committed.collectable(UnneededEnds({name: 1})) == []
        assert committed.collectable(UnneededEnds({name: 2})) == [0]
    finally:
        await world.stop()


async def test_a_leader_has_time_for_a_reference_however_short_lived_objects_are(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        world.is_answer_lost = True
        await world.gateway.send(numbered(0))
        ((due_s, _),) = world.gateway.gateway._objects._unknown
        assert due_s - asyncio.get_running_loop().time() > links.ANSWER_SECONDS_MAX
    finally:
        await world.stop()


async def test_a_gateway_that_has_the_partition_no_longer_asks_its_leader_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep the object for as long as its process runs."""
    monkeypatch.setattr(gateway_objects, "REFERENCE_SECONDS_MAX", 0.0)
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        world.is_leader_silent = world.is_answer_lost = True
        await world.gateway.send(numbered(0))
        world.is_answer_lost = False
        assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 1)
        world.gateway.replica.drop()
        world.is_leader_silent = False
        objects = world.gateway.gateway._objects
        await eventually_async(lambda: not objects._unknown)
        ends = UnneededEnds({PartitionName(TOPIC_ID, 0): 2})
        assert world.gateway.chain.committed.collectable(ends) == [0]
    finally:
        await world.stop()


async def test_what_a_deleted_topic_has_stays_until_its_deletion_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_objects, "REFERENCE_SECONDS_MAX", 0.0)
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        world.is_leader_silent = world.is_answer_lost = True
        await world.gateway.send(numbered(0))
        world.is_answer_lost = False
        assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 1)
        await world.delete_topic()
        objects = world.gateway.gateway._objects
        await eventually_async(lambda: not objects._unknown)
        ends = {PartitionName(TOPIC_ID, 0): 2}
        committed = world.gateway.chain.committed
        assert committed.collectable(UnneededEnds(ends)) == []
        assert committed.collectable(UnneededEnds(ends, deleted_topics={TOPIC_ID})) == [0]
    finally:
        await world.stop()


async def test_a_leader_that_does_not_lead_yet_says_nothing_about_lost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_objects, "REFERENCE_SECONDS_MAX", 0.0)
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        world.is_answer_lost = world.is_leader_silent = True
        await world.gateway.send(numbered(0))
        replica = world.leader.replica
        world.leader.chain.leave(replica)
        world.leader.replicas.end_lead(replica)
        world.is_leader_silent, asked = False, world.ask_count
        await eventually_async(lambda: world.ask_count > asked + 1)
        objects = world.gateway.gateway._objects
        assert objects._unknown
        await world.kill_leader("the next process")
        await eventually_async(lambda: not objects._unknown)
    finally:
        await world.stop()


async def test_a_chain_that_is_sealed_before_its_objects_count_costs_nothing(world: World) -> None:
    """Nobody has seen them: they go into the next chain, in order."""
    world.store.held.clear()
    answers = [world.gateway.send(numbered(n)) for n in range(3)]
    await eventually_async(lambda: world.store.put_count == 1)
    world.gateway.chain.abandon("sealed")
    world.store.held.set()
    assert [given(await answer) for answer in answers] == [(OK, n) for n in range(3)]
    assert {request.chain_id for request in world.forwarded}.isdisjoint(
        {CHAIN_OF[GATEWAY].chain_id}
    )


async def test_a_damaged_object_is_not_appended(world: World) -> None:
    world.is_leader_reachable = False
    answer = world.gateway.send(batch(2))
    await eventually_async(lambda: world.gateway.chain.committed_end > 0)
    key = wal_key(world.gateway.view.image.cluster_id, CHAIN_OF[GATEWAY], 0)
    data = bytearray(await world.store.get(key))
    data[150] ^= 1
    await world.store.replace(key, bytes(data))
    world.is_leader_reachable = True
    assert (await answer).error_code is not OK
    assert world.leader.replica.log.log_end_offset == 0


async def test_a_read_that_hangs_is_sent_once_more(world: World) -> None:
    """Else one slow request of the store would hold up all batches of the gateway."""
    await world.gateway.send(numbered(0))
    world.leader.hang_next_read()
    answers = [await world.gateway.send(numbered(n)) for n in (1, 2)]
    assert [given(answer) for answer in answers] == [(OK, 1), (OK, 2)]
    assert world.leader.hung_count == 1


def asked(world: World, slices: list[GatewaySlice], *, node_id: int = GATEWAY) -> Any:
    """Have the leader handle a request of the broker; return its answer."""
    request = GatewayAppend(CHAIN_OF[GATEWAY].chain_id, 1, 0, slices)
    context = context_of(0, api_key=20_005, node_id=node_id)
    return world.leader.appends.handle(request, context)


def slice_at(position: int, size_bytes: int) -> GatewaySlice:
    return GatewaySlice(TOPIC_ID, 0, position, size_bytes, 0, 9, -1, 1_000, None)


async def test_a_client_cannot_forward_batches(world: World) -> None:
    with pytest.raises(CloseConnection, match="no node"):
        asked(world, [slice_at(112, 100)], node_id=NO_NODE)


async def test_a_slice_larger_than_any_request_is_not_read(world: World) -> None:
    await world.gateway.send(batch(1))
    world.leader.hang_next_read()
    (answer,) = [await asked(world, [slice_at(112, 0xFFFF_FFFF)])]
    (result,) = parse_answer(memoryview(b"".join(answer))[8:], 1)
    assert result.error_code == ErrorCode.message_too_large
    assert world.leader.hung_count == 0


async def test_a_gateway_has_a_bounded_number_of_requests_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others of another one are served."""
    monkeypatch.setattr(gateway_append, "REQUESTS_MAX", 3)
    answers = [asked(world, [slice_at(112, 100)]) for _ in range(3)]
    with pytest.raises(CloseConnection, match="3 requests without an answer"):
        asked(world, [slice_at(112, 100)])
    answers.append(asked(world, [slice_at(112, 100)], node_id=GATEWAY + 1))
    for answer in answers:
        (result,) = parse_answer(memoryview(b"".join(await answer))[8:], 1)
        assert result.error_code
    assert await asked(world, [slice_at(112, 100)])


async def test_a_bad_batch_is_refused_before_it_is_put(world: World) -> None:
    bad = batch(1)
    bad[-1] ^= 1
    assert (await world.gateway.send(bad)).error_code is ErrorCode.corrupt_message
    large = batch(1, value_size_bytes=1_100_000)
    assert (await world.gateway.send(large)).error_code is ErrorCode.message_too_large
    with pytest.raises(CloseConnection):
        world.gateway.send(bad, acks=0)
    assert world.store.put_count == 0


@pytest.mark.parametrize(
    "setting",
    [
        ("cleanup.policy", "compact"),
        ("compression.type", "lz4"),
        ("message.timestamp.type", "LogAppendTime"),
    ],
)
async def test_topics_whose_batches_a_leader_changes_have_no_gateways(
    tmp_path: Path, setting: tuple[str, str]
) -> None:
    async with gateway_world(tmp_path, **dict([setting])) as world:
        answer = await world.gateway.send(batch(1))
        assert answer.error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("trouble", ["can_store", "is_disk_fit"])
async def test_a_gateway_that_cannot_store_sends_producers_to_the_leader(
    world: World, trouble: str
) -> None:
    membership: Any = world.gateway.context.membership
    setattr(membership, trouble, False)
    refused = await world.gateway.send(numbered(0))
    assert refused.error_code is ErrorCode.not_leader_or_follower
    assert (await world.leader.send(numbered(0))).error_code is ErrorCode.none
    setattr(membership, trouble, True)
    assert (await world.gateway.send(numbered(0, producer_id=8))).error_code is ErrorCode.none


async def test_a_gateway_waits_for_the_store_if_the_leader_cannot_write_it_either(
    world: World,
) -> None:
    membership: Any = world.gateway.context.membership
    membership.can_store, membership.unfit = False, frozenset((LEADER, GATEWAY))
    world.store.held.clear()
    answer = world.gateway.send(numbered(0))
    membership.changed.notify()
    assert not answer.done()
    world.store.held.set()
    assert given(await answer) == (OK, 0)


async def test_what_a_gateway_cannot_store_goes_back_to_its_producers(world: World) -> None:
    """They go to the leader with it. Once the gateway's object is stored, nobody hears of it."""
    world.store.held.clear()
    answers = [world.gateway.send(numbered(n)) for n in range(3)]
    await eventually_async(lambda: world.store.put_count == 1)
    membership: Any = world.gateway.context.membership
    membership.can_store = False
    membership.changed.notify()
    assert [(await answer).error_code for answer in answers] == [MOVED] * 3
    traffic = world.gateway.context.counters.gateway
    assert traffic.pending_bytes == 0
    world.store.held.set()
    chain = world.gateway.chain
    await eventually_async(lambda: chain.committed_end > 0 and not chain.buffered_bytes)
    (file,) = world.gateway.gateway._spool._files.values()
    assert file.needed_count == 0
    assert world.forwarded == []
    assert [given(await world.leader.send(numbered(n))) for n in range(3)] == [
        (OK, n) for n in range(3)
    ]
    membership.can_store = True
    assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 3)


async def test_so_does_what_is_in_a_chain_that_is_sealed_then(world: World) -> None:
    world.store.held.clear()
    answer = world.gateway.send(numbered(0))
    await eventually_async(lambda: world.store.put_count == 1)
    membership: Any = world.gateway.context.membership
    membership.can_store = False
    membership.changed.notify()
    assert (await answer).error_code is MOVED
    world.gateway.chain.abandon("sealed")
    (file,) = world.gateway.gateway._spool._files.values()
    assert file.needed_count == 0
    world.store.held.set()
    membership.can_store = True
    assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 0)


async def test_objects_go_when_the_references_are_tiered_and_not_before(world: World) -> None:
    for sequence in (0, 1, 1, 2):  # One of them is a duplicate, without a reference.
        await world.gateway.send(numbered(sequence))
    committed = world.gateway.chain.committed
    name = PartitionName(TOPIC_ID, 0)

    def collectable(end: int) -> list[int]:
        return committed.collectable(UnneededEnds({name: end}))

    assert collectable(0) == [2], "the duplicate alone is garbage"
    assert collectable(1) == [0, 2]
    assert collectable(2) == [0, 1, 2]


async def test_what_goes_through_a_gateway_is_counted_and_served(world: World) -> None:
    sent = [numbered(0, 3), numbered(3), numbered(3), numbered(9)]
    for one in sent:
        await world.gateway.send(one)
    world.leader.hang_next_read()
    await world.gateway.send(numbered(4))
    sizes = [*map(len, sent), len(numbered(4))]
    served = {}
    for node in (world.gateway, world.leader):
        scrape = Scrape()
        await GatewaySource(node.context.counters.gateway).collect(scrape)
        served[node.broker_id] = {
            name.removeprefix("tidelog_diskless_gateway_"): one[0][1]
            for name, one in scrape.series.items()
        }
    acks = served[GATEWAY].pop("ack_seconds")
    assert isinstance(acks, HistogramValue)
    assert (sum(acks.counts), acks.total > 0) == (4, True)
    assert served[GATEWAY] == {
        "batches_total": 5,
        "bytes_total": sum(sizes),
        "lost_batches_total": 1,
        "pending_bytes": 0,
        "waiting_batches": 0,
        "referenced_batches_total": 0,
        "referenced_bytes_total": 0,
        "refused_batches_total": 0,
        "read_hedges_total": 0,
        "late_reads": 0,
    }
    assert served[LEADER]["referenced_batches_total"] == 3
    assert served[LEADER]["referenced_bytes_total"] == sizes[0] + sizes[1] + sizes[4]
    assert served[LEADER]["refused_batches_total"] == 1
    assert served[LEADER]["read_hedges_total"] >= 1


async def test_a_gateway_with_too_much_pending_is_full_until_less_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_batches, "PENDING_COUNT_MAX", 8)
    changes: list[bool] = []
    world.gateway.gateway.fullness.subscribe(changes.append)
    world.is_leader_reachable = False
    answers = [world.gateway.send(numbered(n)) for n in range(8)]
    assert changes == [True]
    refused = await world.gateway.send(numbered(8))
    assert refused.error_code is ErrorCode.request_timed_out
    world.is_leader_reachable = True
    assert [given(await answer) for answer in answers] == [(OK, n) for n in range(8)]
    assert changes == [True, False]
    assert list((world.gateway.folder / "gateway").iterdir())  # One file, for the next batches.
    assert given(await world.gateway.send(numbered(8))) == (OK, 8)


async def test_a_leader_keeps_no_bytes_of_batches_that_it_has_appended(world: World) -> None:
    """Gateways send on while the leader's store takes nothing."""
    world.tickets = asyncio.Semaphore(0)
    answer = world.gateway.send(batch(1, value_size_bytes=10_000))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.store.held.clear()
    tracemalloc.start()
    try:
        world.tickets.release()
        await eventually_async(lambda: world.leader.replica.log.log_end_offset == 1)
        read = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, READ_IN)])
    finally:
        tracemalloc.stop()
    assert sum(one.size for one in read.traces) < 10_000
    world.store.held.set()
    assert given(await answer) == (OK, 0)
