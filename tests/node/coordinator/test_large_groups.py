"""Groups of thousands: what a member costs does not grow with the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from kio.schema.consumer_group_describe.v1 import request as consumer_describe
from kio.schema.describe_groups.v6 import request as describe
from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.stored_groups import read_group
from tidelog_core.metadata.coordination.groups import group_collection, pack_classic
from tidelog_core.metadata.store import ItemKey, Write
from tidelog_node.coordinator.group_items import PageLimits
from tidelog_node.fairness import request_turns
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.handlers.groups.classic_groups import GroupHandlers
from tidelog_node.handlers.groups.consumer_groups import ConsumerGroupHandlers
from tidelog_node.wire.messages import build

from bench.group_joins import measure
from tests.support.consumer_members import beat, consumer_group_of, enter
from tests.support.coordinator_node import Node, new_cluster, node
from tests.support.group_requests import join, subscription, sync
from tests.support.memory_store import MemoryMetadataStore
from tests.support.request_contexts import context_of
from tests.support.virtual_time import run


def size_of(commits: Sequence[Sequence[Write]]) -> int:
    return sum(len(json.dumps(write.body)) for writes in commits for write in writes)


async def consumers(broker: Node, count: int) -> None:
    """Have so many members in the group, all of whom have what they are to have."""
    await asyncio.gather(*(enter(broker, f"m{number}") for number in range(count)))
    for _ in range(3):
        await asyncio.sleep(1.1)
        for member in list((await consumer_group_of(broker)).roster):
            await beat(broker, member.member_id, member.epoch, owned=member.assigned)
    group = await consumer_group_of(broker)
    assert {member.epoch for member in group.roster} == {group.epoch}


def test_a_consumer_that_joins_or_commits_writes_as_much_in_a_group_four_times_as_large() -> None:
    async def cost(count: int) -> tuple[list[int], list[int]]:
        store = MemoryMetadataStore()
        await new_cluster(store)
        async with node(store) as broker:
            await consumers(broker, count)
            epoch = (await consumer_group_of(broker)).epoch
            counts, sizes = [], []
            for action in (
                lambda: enter(broker, "new"),
                lambda: beat(broker, "m1", epoch),
                lambda: broker.commit(5, member_id="m2", generation=epoch),
                lambda: beat(broker, "m3", -1),
            ):
                await asyncio.sleep(1.1)
                store.commits.clear()
                await action()
                counts.append(sum(map(len, store.commits)))
                sizes.append(size_of(store.commits))
        return counts, sizes

    async def main() -> None:
        counts, sizes = await cost(105)
        more_counts, more_sizes = await cost(420)
        assert more_counts == counts
        assert more_sizes == pytest.approx(sizes, rel=0.3, abs=300)

    run(main())


def test_a_classic_groups_commit_writes_as_much_in_a_group_ten_times_as_large() -> None:
    async def cost(count: int) -> tuple[list[int], int]:
        store = MemoryMetadataStore()
        await new_cluster(store)
        options = {"protocols": (("range", subscription("t")),), "session_timeout_ms": 600_000}
        async with node(store) as broker:
            names = [f"m{number}" for number in range(count)]
            generation = await broker.stable(*names, **options)
            store.commits.clear()
            for number in (3, 4):
                error = await broker.commit(5, member_id=f"m{number}", generation=generation)
                assert error is ErrorCode.none
            return [len(writes) for writes in store.commits], size_of(store.commits)

    async def main() -> None:
        counts, size = await cost(50)
        more_counts, more_size = await cost(500)
        assert (more_counts, more_size) == (counts, pytest.approx(size, abs=20))

    run(main())


def test_a_rebalance_of_many_classic_members_is_a_handful_of_transactions() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        limits = PageLimits(members_per_page=8, pages_per_commit=20)
        async with node(store, page_limits=limits) as broker:
            names = [f"m{number}" for number in range(400)]
            store.commits.clear()
            generation = await broker.stable(*names, protocols=(("range", subscription("t")),))
            # The group, its 50 pages in three parts, and the record; the assignment likewise.
            assert len(store.commits) <= 9
            late = asyncio.create_task(broker.member("late", protocols=_PROTOCOLS))
            await asyncio.sleep(0.1)
            answers = await asyncio.gather(
                *(broker.join(join(name, protocols=_PROTOCOLS)) for name in names)
            )
            assert {answer.generation for answer in answers} == {generation + 1}
            assert (await late).generation == generation + 1
        async with node(store) as again:
            error = await again.coordinator.heartbeat("g", GroupCaller("m77", None, generation + 1))
            assert error is ErrorCode.none

    run(main())


def test_a_static_member_that_comes_back_has_its_page_written_and_no_other() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        async with node(store) as broker:
            names = [f"m{number}" for number in range(200)]
            joins = [join(new=n, instance=f"i{n}", protocols=_PROTOCOLS) for n in names]
            answers = await asyncio.gather(*(broker.join(one) for one in joins))
            generation, leader = answers[0].generation, answers[0].leader
            shares = {name: b"assigned " + name.encode() for name in names}
            await asyncio.gather(
                *(
                    broker.coordinator.sync(
                        "g",
                        sync(n, generation, shares if n == leader else None, instance=f"i{n}"),
                    )
                    for n in names
                )
            )
            group = await broker.coordinator.describe("g")
            assert isinstance(group, ClassicGroup)
            before = {member.member_id: member.to_record() for member in group.roster}
            store.commits.clear()
            again = await broker.join(join(new="again", instance="im70", protocols=_PROTOCOLS))
            assert again.generation == generation
            assert [len(writes) for writes in store.commits] == [1]
            # Nothing is made for those who stay: they are compared by identity.
            after = {member.member_id: member.to_record() for member in group.roster}
            changed = {name for name, record in after.items() if before.get(name) is not record}
            assert changed == {"again"}

    run(main())


def test_members_that_an_older_program_stored_go_on_as_they_were() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        async with node(store) as broker:
            generation = await broker.stable("a", "b", protocols=_PROTOCOLS)
        (key,) = [k for k in await groups_of(store) if k.key == "g"]
        item = await store.get(key)
        stored = await read_group(store, int(key.collection.removeprefix("group:")), "g")
        assert item is not None
        assert stored is not None
        pages = [Write(page.item_id, None, page.version) for page in stored.pages]
        body = {**item.body, "members": pack_classic(stored.record.members)}
        del body["stamp"]
        await store.commit([Write(key, body, item.version), *pages])
        async with node(store) as broker:
            assert (
                await broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
                is ErrorCode.none
            )
            error = await broker.commit(5, member_id="b", generation=generation)
            assert error is ErrorCode.none
            synced = await broker.sync("b", generation)
            assert synced.assignment == b"assigned b"
            late = asyncio.create_task(broker.member("late", protocols=_PROTOCOLS))
            await asyncio.sleep(0.1)
            answers = await asyncio.gather(
                *(broker.join(join(name, protocols=_PROTOCOLS)) for name in ("a", "b"))
            )
            assert {answer.generation for answer in answers} == {generation + 1}
            assert (await late).generation == generation + 1
        item = await store.get(key)
        assert item is not None
        assert "members" not in item.body

    run(main())


async def groups_of(store: MemoryMetadataStore) -> list[ItemKey]:
    """Return the keys of all groups' records."""
    items = [await store.list(group_collection(shard)) for shard in range(4)]
    return [item.id for some in items for item in some]


_PROTOCOLS = (("range", subscription("t")),)


async def test_others_are_served_while_a_large_group_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A fast machine describes a group of 2,000 in one turn of the usual length.
    monkeypatch.setattr(request_turns, "TURN_SECONDS", 0.000_5)
    store = MemoryMetadataStore(latency=0)
    await new_cluster(store)
    async with node(store) as broker:
        count = 2000
        await asyncio.gather(*(enter(broker, f"m{number}") for number in range(count)))
        names = [f"c{number}" for number in range(count)]
        classic = await broker.stable(*names, group="classic", protocols=_PROTOCOLS)
        assert classic == 1
        coordinator = broker.coordinator
        routes = {
            route.api_key: route
            for route in (
                *GroupHandlers(coordinator=coordinator).routes(),
                *ConsumerGroupHandlers(coordinator=coordinator, access=None).routes(),
            )
        }
        for api_key, request in (
            (69, build(consumer_describe.ConsumerGroupDescribeRequest, group_ids=("g",))),
            (15, build(describe.DescribeGroupsRequest, groups=("classic",))),
        ):
            route = routes[api_key]
            version = route.max_version
            context = context_of(version, api_key=api_key, client_id=b"client")
            describing = asyncio.create_task(route.handle(request, context))
            turns = 0
            while not describing.done():
                await asyncio.sleep(0)
                turns += 1
            (group,) = (await describing).groups
            assert len(group.members) == count
            assert turns > 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_consumers_join_in_seconds_of_cpu() -> None:
    """A bound that a busy machine holds too; ``bench.group_joins`` measures latencies."""
    row = measure(10_000, partition_count=1000, is_compiled=False, join_seconds=120)
    print(row)
    assert row["joined"] == 10_000
    assert row["errors"] == {}
    assert row["node_cpu_seconds"] < 40  # all heartbeats of a minute with them
    assert row["commit_check_write_units"] == 2
