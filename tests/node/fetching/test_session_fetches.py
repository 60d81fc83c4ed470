"""Requests of sessions on one node in this process: what they look at, and how they end."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tidelog_core.admin.names import TOPIC_NAME_LENGTH_MAX
from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_session import FetcherSession
from tidelog_node.answers import PendingReply, TaskReply
from tidelog_node.handlers.fetch import handler as fetch
from tidelog_node.handlers.fetch.fetch_sessions import RACK_SIZE_BYTES_MAX
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.fetch import FetchPartition

from tests.node.fetching.session_world import FetchWorld, Key, SessionClient, fetch_world
from tests.support.batches import batch_of
from tests.support.request_contexts import context_of

NOT_FOUND = ErrorCode.fetch_session_id_not_found
WAIT_MS = 60_000


async def settled_client(world: FetchWorld, topic: str, count: int, **who: int) -> SessionClient:
    """Return a client that has been told all there is of an empty topic's partitions."""
    client = SessionClient(world, by_id=True, **who)
    epoch = 0 if client.replica_id >= 0 else -1
    for index in range(count):
        client.want(world.key(topic, index, by_id=True), 0, leader_epoch=epoch)
    for _ in range(3):
        await client.fetch()
    return client


def append(replica: Replica) -> None:
    replica.append(memoryview(bytearray(batch_of(b"v"))))


def checks_of(world: FetchWorld, client: SessionClient) -> int:
    """Return how many partitions the session's next request, naming none, would look at."""
    request = client.request([], [], session=(client.session_id, client.epoch))
    return world.handler.weigh(request) - request.element_count


async def test_only_partitions_with_news_are_looked_at(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=20)
        client = await settled_client(world, "t", 20)
        assert checks_of(world, client) == 0
        append(world.replica("t", 7))
        assert checks_of(world, client) == 1
        await client.fetch()
        assert list(client.answered) == [world.key("t", 7, by_id=True)]
        await client.fetch()  # It names its new offset there.
        assert checks_of(world, client) == 0
        assert client.answered == {}


async def test_a_followers_fetch_looks_at_what_was_appended_or_committed(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=20)
        second = await settled_client(world, "t", 20, replica_id=2)
        third = await settled_client(world, "t", 20, replica_id=3)
        for _ in range(3):
            append(world.replica("t", 7))
            for follower in (second, third, second, third, second):
                await follower.fetch()
                assert checks_of(world, follower) <= 1
        replica = world.replica("t", 7)
        assert replica.log.high_watermark == 3
        for follower in (second, third):
            await follower.fetch()
            assert follower.told[world.key("t", 7, by_id=True)] == (3, 0)


async def test_an_offset_beyond_the_end_is_refused_once_others_leave_room_for_it(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=2)
        client = SessionClient(world, by_id=True)
        for index, offset in ((0, 0), (1, 5)):
            client.want(world.key("t", index, by_id=True), offset)
        for _ in range(3):
            append(world.replica("t"))
        for _ in range(2):
            await client.fetch(max_bytes=1)
        for _ in range(3):
            await client.fetch()
        key = world.key("t", 1, by_id=True)
        assert client.errors == {key: int(ErrorCode.offset_out_of_range)}


async def test_a_node_that_may_not_serve_says_so_for_every_partition(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=5)
        client = await settled_client(world, "t", 5)
        world.may_serve = False
        assert checks_of(world, client) == 5
        await client.fetch()
        assert set(client.errors.values()) == {int(ErrorCode.not_leader_or_follower)}
        world.may_serve = True
        await client.fetch()
        assert len(client.answered) == 5
        assert client.errors == {}


async def test_a_request_looks_at_no_more_partitions_than_it_may_name(tmp_path: Path) -> None:
    async with fetch_world(tmp_path, socket_request_max_partitions=5) as world:
        await world.create_topic("t", partitions=12)
        follower = SessionClient(world, by_id=True, replica_id=2)
        for index in range(12):
            follower.want(world.key("t", index, by_id=True), 0, leader_epoch=0)
            await follower.fetch()
        assert checks_of(world, follower) <= 5
        for end_offset in (1, 2):
            for index in range(12):
                append(world.replica("t", index))
            counts = []
            while any(wanted.offset < end_offset for wanted in follower.wanted.values()):
                await follower.fetch(max_wait_ms=WAIT_MS)
                counts.append(len(follower.answered))
            assert max(counts) <= 5
            assert len(counts) <= 8  # with records of two partitions each


async def test_records_of_more_partitions_than_a_follower_names_at_once_are_sent_once(
    tmp_path: Path,
) -> None:
    """One whose next offset is not named would have its records sent again."""
    count, elements_max = 60, 50

    async with fetch_world(tmp_path, socket_request_max_partitions=elements_max) as world:
        await world.create_topic("t", partitions=count)
        keys = [world.key("t", index, by_id=True) for index in range(count)]
        follower = SessionClient(world, by_id=True, replica_id=2)
        session: FetcherSession[Key, FetchPartition] = FetcherSession(
            new_max=5, named_max=elements_max // 2, clock_s=time.monotonic
        )
        for key in keys:
            follower.want(key, 0, leader_epoch=0)
            session.want(key, follower.wanted[key])
        sent = 0
        for end_offset in (0, 1, 2, 3):
            while any(wanted.offset < end_offset for wanted in follower.wanted.values()) or (
                session.has_news
            ):
                fetch = session.next_fetch()
                assert fetch is not None
                topics = [(key[0], [wanted]) for key, wanted in fetch.named]
                request = follower.request(
                    topics, [], session=(fetch.session_id, fetch.session_epoch)
                )
                reply = world.handler.handle(
                    request, context_of(follower.version, node_id=follower.replica_id)
                )
                error = follower.take(reply if isinstance(reply, list) else await reply)
                assert session.on_answer(ErrorCode(error), follower.session_id, follower.answered)
                for key, answer in follower.answered.items():
                    sent += bool(answer.records)
                    session.want(key, follower.wanted[key])
            assert sent == end_offset * count
            for index in range(count):
                append(world.replica("t", index))


async def test_a_request_that_finds_nothing_in_a_part_looks_at_the_others_and_waits(
    tmp_path: Path,
) -> None:
    """A follower outside of the ISR has no settled partition, here more than one look takes."""
    async with fetch_world(tmp_path, socket_request_max_partitions=5) as world:
        await world.create_topic("t", partitions=12)
        for index in range(12):
            await world.change_partition("t", index, isr=(1, 3))
        follower = SessionClient(world, by_id=True, replica_id=2)
        for index in range(12):
            follower.want(world.key("t", index, by_id=True), 0, leader_epoch=0)
            await follower.fetch()
        for _ in range(3):
            await follower.fetch()
        for appended in range(12):
            world.now_ms += 10
            waiting = world.handler.handle(
                follower.next_request(max_wait_ms=WAIT_MS),
                context_of(follower.version, node_id=follower.replica_id),
            )
            assert isinstance(waiting, PendingReply)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.is_settled
            for index in range(12):
                leader = world.replica("t", index).leader
                assert leader is not None
                assert leader.followers[2].last_fetch_ms == world.now_ms
            append(world.replica("t", appended))
            async with asyncio.timeout(60):
                follower.take(await waiting)
            key = world.key("t", appended, by_id=True)
            assert [k for k, answer in follower.answered.items() if answer.records] == [key]


async def test_changed_terms_have_everything_looked_at(tmp_path: Path) -> None:
    """What read_committed has read to its end may have more for read_uncommitted."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        client = await settled_client(world, "t", 1, isolation=1)
        data = batch_of(b"v", producer=(1, 0, 0), is_transactional=True)
        world.replica("t").append(memoryview(bytearray(data)))
        for _ in range(3):
            await client.fetch()
        assert checks_of(world, client) == 0
        client.isolation = 0
        assert checks_of(world, client) == 1
        await client.fetch()
        assert [bool(answer.records) for answer in client.answered.values()] == [True]


async def test_a_session_whose_client_is_gone_costs_a_partition_one_call(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=2)
        client = await settled_client(world, "t", 2)
        replica = world.replica("t")
        assert len(replica.waiters) == 1
        append(replica)
        assert len(replica.waiters) == 0
        assert len(world.replica("t", 1).waiters) == 1
        await client.fetch()
        await client.fetch()
        assert len(replica.waiters) == 1


async def test_an_ended_session_watches_nothing_and_its_waiting_request_is_answered(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=2)
        client = await settled_client(world, "t", 2)
        waiting = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, node_id=client.replica_id),
        )
        assert not isinstance(waiting, list)
        session = world.handler.sessions.find(client.session_id)
        assert session is not None
        world.handler.sessions.close(session)
        assert client.take(await waiting) == 0
        assert all(not world.replica("t", index).waiters for index in (0, 1))
        assert await client.fetch() == NOT_FOUND


async def test_the_next_request_of_a_session_ends_the_wait_of_the_one_before(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        client = await settled_client(world, "t", 1)
        first = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, node_id=client.replica_id),
        )
        assert not isinstance(first, list)
        client.epoch += 1
        second = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, correlation_id=2),
        )
        client.take(await first)
        client.epoch -= 1
        append(world.replica("t"))
        assert not isinstance(second, list)
        client.take(await second)
        assert [bool(answer.records) for answer in client.answered.values()] == [True]


async def test_a_partition_with_more_than_its_limit_does_not_wait_for_bytes_beyond_it(
    tmp_path: Path,
) -> None:
    """No batch ends at the limit, so an answer never has as many bytes."""
    size_bytes = len(batch_of(b"v"))
    limit_bytes = 2 * size_bytes + 1
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        client = await settled_client(world, "t", 1)
        for _ in range(6):
            append(world.replica("t"))
        key = world.key("t", 0, by_id=True)
        client.wanted[key] = client.wanted[key]._replace(bytes_max=limit_bytes)
        request = client.next_request(max_wait_ms=WAIT_MS, min_bytes=limit_bytes)
        answer = world.handler.handle(request, context_of(client.version))
        assert isinstance(answer, list)
        client.take(answer)
        assert len(client.answered[key].records) == 2 * size_bytes
        # The client wants more than it allows the partition, so it waits for others.
        request = client.next_request(max_wait_ms=WAIT_MS, min_bytes=limit_bytes + 1)
        answer = world.handler.handle(request, context_of(client.version))
        assert isinstance(answer, PendingReply)


async def test_a_waiting_request_that_cannot_be_answered_fails_alone(tmp_path: Path) -> None:
    """Its records are lost on the disk. The next request of the session ends its wait."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        client = await settled_client(world, "t", 1)
        limits = {"max_wait_ms": WAIT_MS, "min_bytes": 10_000}
        first = world.handler.handle(
            client.next_request(**limits), context_of(client.version, node_id=client.replica_id)
        )
        assert isinstance(first, PendingReply)
        append(world.replica("t"))
        (path,) = world.replica("t").log.directory.glob("*.log")
        os.truncate(path, path.stat().st_size - 1)
        client.epoch += 1
        second = world.handler.handle(
            client.next_request(**limits), context_of(client.version, correlation_id=2)
        )
        assert isinstance(second, PendingReply)
        with pytest.raises(OSError, match="ends before byte"):
            await first
        assert not second.is_settled


async def test_a_request_that_waits_for_a_log_takes_no_wake_up_from_the_next_one(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        client = await settled_client(world, "t", 1)
        await world.create_topic("u", replicas=(1,), is_open=False)
        client.want(world.key("u", 0, by_id=True), 0)
        first = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, node_id=client.replica_id),
        )
        assert isinstance(first, TaskReply)  # The log is being opened.
        client.epoch += 1
        second = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, correlation_id=2),
        )
        assert not isinstance(second, list)
        async with asyncio.timeout(60):
            error = client.take(await first)
            append(world.replica("t"))
            client.take(await second)
        assert error == ErrorCode.invalid_fetch_session_epoch
        assert client.answered[world.key("t", 0, by_id=True)].records


async def test_a_session_is_its_followers(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t")
        follower = await settled_client(world, "t", 1, replica_id=2)
        for replica_id in (3, -1):
            other = SessionClient(world, by_id=True, replica_id=replica_id)
            other.session_id, other.epoch = follower.session_id, follower.epoch
            assert await other.fetch() == NOT_FOUND
        assert await follower.fetch() == 0


async def test_a_followers_new_registration_ends_its_session_and_vouches_for_nothing(
    tmp_path: Path,
) -> None:
    """It registers again because its logs may be shorter than what the session knows of them."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=2)
        follower = await settled_client(world, "t", 2, replica_id=2)
        before = world.view.image.brokers[2].version
        await world.register(2)
        assert world.view.image.brokers[2].version > before
        assert await follower.fetch() == NOT_FOUND
        for index in (0, 1):
            leader = world.replica("t", index).leader
            assert leader is not None
            assert leader.followers[2].replica_epoch == before
        assert len(world.handler.sessions) == 0


async def test_a_session_that_grows_beyond_the_bound_ends(tmp_path: Path) -> None:
    bounds = {"max_incremental_fetch_session_cache_partitions": 4}
    async with fetch_world(tmp_path, **bounds) as world:
        await world.create_topic("t", replicas=(1,), partitions=6)
        client = await settled_client(world, "t", 3)
        assert client.session_id
        for index in range(6):
            client.want(world.key("t", index, by_id=True), 0)
        assert await client.fetch() == NOT_FOUND
        assert len(world.handler.sessions) == 0
        assert await client.fetch() == 0
        assert client.session_id == 0
        assert len(client.answered) == 6


async def test_a_follower_of_an_earlier_registration_ends_no_session(tmp_path: Path) -> None:
    """A request of its earlier life may come late, and anyone may claim a broker's id."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t")
        follower = await settled_client(world, "t", 1, replica_id=2)
        for by_id, replica_epoch in ((False, -1), (True, world.view.image.brokers[2].version)):
            claimant = SessionClient(world, replica_id=2, by_id=by_id)
            claimant.want(world.key("t", 0, by_id=by_id), 0, leader_epoch=0)
            claimant.replica_epoch = replica_epoch - int(by_id)
            assert await claimant.fetch() == 0
            assert await follower.fetch() == 0
            assert await claimant.fetch() == 0


@pytest.mark.parametrize(("replica_id", "replica_epoch"), [(2, -1), (77, 1_000_000)])
async def test_who_is_no_registered_follower_takes_no_clients_place(
    tmp_path: Path, replica_id: int, replica_epoch: int
) -> None:
    bounds = {"max_incremental_fetch_session_cache_slots": 2}
    async with fetch_world(tmp_path, **bounds) as world:
        await world.create_topic("t", replicas=(1,))
        clients = [await settled_client(world, "t", 1) for _ in range(2)]
        claimant = SessionClient(world, replica_id=replica_id, by_id=True)
        claimant.want(world.key("t", 0, by_id=True), 0, leader_epoch=0)
        claimant.replica_epoch = replica_epoch
        assert await claimant.fetch() == 0
        assert claimant.session_id == 0
        for client in clients:
            assert await client.fetch() == 0


async def test_what_a_session_would_keep_is_bounded(tmp_path: Path) -> None:
    """A topic's name and a rack come as long as a request is; no topic has such a name."""

    async def session_id_of(world: FetchWorld, name_size: int, rack_size: int) -> int:
        client = SessionClient(world)
        client.want((b"n" * name_size, 0), 0)
        client.rack = b"r" * rack_size
        assert await client.fetch() == 0
        assert len(client.answered) == 1
        return client.session_id

    async with fetch_world(tmp_path) as world:
        assert await session_id_of(world, TOPIC_NAME_LENGTH_MAX + 1, 0) == 0
        assert await session_id_of(world, 1, RACK_SIZE_BYTES_MAX + 1) == 0
        assert await session_id_of(world, TOPIC_NAME_LENGTH_MAX, RACK_SIZE_BYTES_MAX) != 0


async def test_a_request_that_names_more_than_its_session_may_keep_ends_it(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,))
        for name_size, rack_size in (
            (TOPIC_NAME_LENGTH_MAX + 1, 0),
            (1, RACK_SIZE_BYTES_MAX + 1),
        ):
            client = SessionClient(world)
            client.want((b"t", 0), 0)
            await client.fetch()
            assert client.session_id != 0
            client.want((b"n" * name_size, 0), 0)
            client.rack = b"r" * rack_size
            assert await client.fetch() == NOT_FOUND
            assert len(world.handler.sessions) == 0


async def test_a_follower_outside_of_the_isr_says_with_every_request_that_it_wants_in(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t")
        follower = await settled_client(world, "t", 1, replica_id=2)
        assert checks_of(world, follower) == 0
        await world.change_partition("t", 0, isr=(1, 3))
        leader = world.replica("t").leader
        assert leader is not None
        assert not leader.followers[2].wants_in
        for _ in range(3):
            await follower.fetch()
            assert leader.followers[2].wants_in
            assert checks_of(world, follower) == 1
        await world.change_partition("t", 0, isr=(1, 2, 3))
        await follower.fetch()
        assert checks_of(world, follower) == 0


async def test_a_followers_session_vouches_for_idle_partitions(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=2)
        follower = await settled_client(world, "t", 2, replica_id=2)
        world.now_ms += 3_600_000
        await follower.fetch()
        world.now_ms += 10
        for index in (0, 1):
            append(world.replica("t", index))
            leader = world.replica("t", index).leader
            assert leader is not None
            assert leader.followers[2].last_caught_up_ms == world.now_ms - 10
        del follower.wanted[world.key("t", 1, by_id=True)]
        await follower.fetch()
        leader = world.replica("t", 1).leader
        assert leader is not None
        assert leader.followers[2].contact is None


async def test_appends_do_not_wait_for_commits_that_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of replicated and diskless partitions asks for both by one request."""
    monkeypatch.setattr(fetch, "COMMITS_APART_SECONDS", 3_600.0)
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=2)
        follower = await settled_client(world, "t", 2, replica_id=2)
        waiting = world.handler.handle(
            follower.next_request(max_wait_ms=WAIT_MS), context_of(follower.version, node_id=2)
        )
        assert isinstance(waiting, PendingReply)
        for waiter in tuple(world.replica("t", 0).follower_waiters):
            waiter.on_commit()
        append(world.replica("t", 1))
        async with asyncio.timeout(WAIT_MS / 2_000):
            follower.take(await waiting)
        assert list(follower.answered) == [world.key("t", 1, by_id=True)]
