"""Which full lists are kept, what a fetch of a kept one looks at, and how a list ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tidelog_core.model import TopicPartition
from tidelog_node.answers import PendingReply
from tidelog_node.handlers.fetch.fetch_lists import KEPT_PARTITIONS_MIN, FullList
from tidelog_node.handlers.fetch.fetch_sessions import EVICTABLE_AFTER_MS
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.fetch import parse_fetch
from tidelog_node.wire.primitives import PARSE_ERRORS

from tests.node.fetching.ring_client import RingClient, answer_bytes
from tests.node.fetching.session_world import FetchWorld, fetch_world
from tests.support.batches import batch_of

COUNT = 40
VERSIONS = (4, 5, 7, 9, 11, 12, 13, 16)


def append(replica: Replica) -> None:
    replica.append(memoryview(bytearray(batch_of(b"v"))))


async def settled_client(
    world: FetchWorld, *, version: int = 11, topics: tuple[str, ...] = ("t",)
) -> RingClient:
    """Return a client whose list is kept, and which has no news."""
    client = RingClient(world, version)
    for name in topics:
        if name not in world.view.image.topics:
            await world.create_topic(name, replicas=(1,), partitions=COUNT)
        client.add(name, COUNT)
    client.fetch()
    client.fetch()
    assert client.kept is not None
    assert not client.kept.dirty
    return client


def checks_of(world: FetchWorld, client: RingClient) -> int:
    """Return how many partitions the client's next request has the node look at."""
    request = world.handler.lists.recall(client.frame(), 0, client.version, client.session)
    assert request is not None
    return world.handler.weigh(request)


@pytest.mark.parametrize("version", VERSIONS)
async def test_only_partitions_with_news_are_looked_at(tmp_path: Path, version: int) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world, version=version, topics=("t", "u"))
        assert checks_of(world, client) == 0
        append(world.replica("u", 7))
        key = world.key("u", 7, by_id=client.by_id)
        assert checks_of(world, client) == 1
        client.fetch()
        client.offsets[key] = 1
        client.fetch()
        assert checks_of(world, client) == 0


async def test_a_list_is_known_wherever_it_begins(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world, topics=("t", "u", "v"))
        kept = client.kept
        for first in range(len(client.ring)):
            client.first = first
            client.fetch()
            assert client.kept is kept


async def test_a_waiting_fetch_looks_at_what_was_appended(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        waiting = client.wait()
        kept = client.kept
        assert kept is not None
        append(world.replica("t", 7))
        assert [partition.place for partition in kept.dirty_in_order()] == [7]
        answer = answer_bytes(await waiting)
        client.first -= 1
        assert answer == client.judged(client.frame())[0]


async def test_a_leader_that_may_have_a_successor_says_so_at_once(tmp_path: Path) -> None:
    """The hand-over is being written: what lies settled must not be answered any more."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=COUNT)
        client = await settled_client(world)
        replica = world.replica("t", 3)
        assert replica.role is not None
        assert replica.leader is not None
        for is_uncertain in (True, False):
            replica.leader._proposals.may_lead_elsewhere = is_uncertain
            replica.role.follow_high_watermark(replica.log)
            assert checks_of(world, client) == 1
            client.fetch()
        client.fetch()
        assert checks_of(world, client) == 0


async def test_a_request_behind_one_that_is_not_answered_leaves_the_list_alone(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        kept = client.kept
        first = client.wait()
        client.offsets[world.key("t", 3, by_id=False)] = 5  # out of range
        answer = client.fetch()
        assert client.kept is kept
        assert not first.is_settled
        client.offsets[world.key("t", 3, by_id=False)] = 0
        client.first -= 2
        expected_frame = client.frame()
        append(world.replica("t", 7))
        records = answer_bytes(await first)
        assert records == client.judged(expected_frame)[0]
        assert records != answer
        client.fetch()
        assert client.kept is kept


async def test_a_list_ends_with_its_connection(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        other = await settled_client(world)
        assert world.handler.sessions.partition_count == 2 * COUNT
        client.session.closed()
        assert client.kept is None
        assert world.handler.sessions.partition_count == COUNT
        assert all(len(world.replica("t", index).waiters) == 1 for index in range(COUNT))
        other.session.closed()
        assert len(world.handler.sessions) == 0
        assert all(not world.replica("t", index).waiters for index in range(COUNT))


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_incremental_fetch_session_cache_slots": 1},
        {"max_incremental_fetch_session_cache_partitions": 2 * COUNT - 1},
    ],
)
async def test_lists_are_bounded_as_sessions_are(tmp_path: Path, bounds: dict[str, int]) -> None:
    async with fetch_world(tmp_path, **bounds) as world:
        client = await settled_client(world)
        other = RingClient(world, 11)
        other.add("t", COUNT)
        for _ in range(3):
            other.fetch()
            assert other.kept is None
        world.now_ms += EVICTABLE_AFTER_MS + 1
        other.fetch()
        assert other.kept is not None
        client.fetch()  # It has lost its place, and is read in full.
        assert client.kept is None


async def test_an_evicted_list_answers_its_waiting_request(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        waiting = client.wait()
        assert client.kept is not None
        world.handler.sessions.close(client.kept)
        append(world.replica("t", 7))  # Nothing watches any more.
        client.first -= 1
        assert answer_bytes(await waiting) == client.judged(client.frame())[0]


async def test_who_sends_another_list_every_time_has_it_kept_ever_more_seldom(
    tmp_path: Path,
) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        rng = random.Random(1)
        kept: list[FullList | None] = []
        for _ in range(300):
            rng.shuffle(client.ring)
            client.fetch()
            kept.append(client.kept)
        assert 5 <= len(set(kept)) <= 10
        assert len(world.handler.sessions) <= 1


async def test_what_is_no_consumers_plain_full_list_is_not_kept(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=COUNT)
        few, twice, racked = (RingClient(world, 11) for _ in range(3))
        few.add("t", KEPT_PARTITIONS_MIN - 2)
        twice.add("t", COUNT)
        twice.ring.append(twice.ring[1])
        racked.add("t", COUNT)
        racked.rack = b"r"
        for client in (few, twice, racked):
            for _ in range(3):
                client.fetch()
                assert client.kept is None
        assert len(world.handler.sessions) == 0


async def test_no_request_can_name_a_list_as_its_session(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        assert client.kept is not None
        assert client.kept.session_id >= 2**31


@pytest.mark.parametrize("version", [4, 11, 12, 13])
async def test_a_recalled_request_is_what_reading_it_gives(tmp_path: Path, version: int) -> None:
    """With any of its bytes changed, cut short, or with more behind it."""
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world, version=version, topics=("t", "u"))
        client.first = 5
        whole = bytes(client.frame())
        rng = random.Random(version)
        recalled = 0
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] = rng.choice([0, 1, changed[position] ^ 1, rng.randrange(256)])
            recalled += check_recalled(world, client, changed)
            recalled += check_recalled(world, client, bytearray(whole[:position]))
        assert not check_recalled(world, client, bytearray(whole + b"\x00"))
        assert recalled > len(whole) // 3


def check_recalled(world: FetchWorld, client: RingClient, body: bytearray) -> bool:
    """Return whether the request is recalled; if so, it must be what a parser makes of it."""
    frame = memoryview(body)
    kept = client.kept
    assert kept is not None
    request = world.handler.lists.recall(frame, 0, client.version, client.session)
    if request is None:
        return False
    parsed = parse_fetch(frame, 0, client.version)
    order = kept.listed[kept.first :] + kept.listed[: kept.first]
    assert [(p.topic, p.wanted) for p in order] == [
        (name, wanted) for name, partitions in parsed.topics for wanted in partitions
    ]
    assert not parsed.forgotten
    assert not parsed.rack
    for field in ("replica_id", "max_wait_ms", "min_bytes", "max_bytes", "isolation_level"):
        assert getattr(request, field) == getattr(parsed, field)
    return True


async def test_malformed_requests_are_refused_beside_a_kept_list(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world, version=12)
        whole = client.frame()
        with pytest.raises(PARSE_ERRORS):
            client.send(whole[:-1])
        client.first -= 1
        client.fetch()


async def test_a_deleted_topic_and_one_of_its_name_show_at_once(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        client = await settled_client(world)
        waiting = client.wait()
        await world.delete_topic("t")
        assert isinstance(waiting, PendingReply)
        await waiting
        client.fetch()
        await world.create_topic("t", replicas=(1,), partitions=COUNT)
        assert world.replicas.get(TopicPartition("t", 0)) is not None
        client.fetch()
        client.fetch()
        append(world.replica("t", 2))
        assert checks_of(world, client) == 1
        client.fetch()
