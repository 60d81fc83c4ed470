"""Thousands of topics of one request: together in few transactions, each with its own fate."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.admin.topics.topic_commits import Deletion
from tidelog_core.admin.topics.topic_plans import (
    NEW_PARTITIONS_MAX,
    NewTopic,
    TopicPlan,
    WiderTopic,
)
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    InvalidPartitions,
    InvalidTopic,
    ItemTooLarge,
    OutcomeUnknown,
    PolicyViolation,
    RequestTimedOut,
    StoreUnavailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker
from tidelog_core.metadata.store import COMMIT_WRITES_MAX, Changes, Check, ClusterVersion, Write
from tidelog_core.metadata.stores.commit import BODY_SIZE_BYTES_MAX
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.loop_turns import loop_turns

LONGEST_SHARE_MAX = 0.1  # of the time that all turns take: 10 ms are meant
LARGE = {"retention.ms": " " * 200_000 + "1"}


class WatchedStore(SqliteMetadataStore):
    """A real store that counts, and does what a test wants before a commit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commit_count = 0
        self.read_count = 0
        self.before_commit: Callable[[int], Awaitable[None]] | None = None  # gets its number

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        self.commit_count += 1
        before, self.before_commit = self.before_commit, None
        try:
            if before is not None:
                await before(self.commit_count)
        finally:
            self.before_commit = before
        await super().commit(writes, checks=checks)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        self.read_count += 1
        return await super().changes_since(version)


class Cluster:
    """Three brokers' metadata, and an administrator on one of them."""

    def __init__(self, store: WatchedStore) -> None:
        self.store = store
        self.view = ClusterView(store)
        self.admin = self.another_admin(self.view)

    def another_admin(self, view: ClusterView | None = None) -> TopicAdmin:
        return TopicAdmin(
            store=self.store,
            view=view or ClusterView(self.store),
            node_config=lambda: NodeConfig(num_partitions=1, default_replication_factor=3),
        )

    async def stored_names(self) -> set[str]:
        return {item.id.key for item in await self.store.list(records.TOPIC_COLLECTION)}


@asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[Cluster]:
    store = WatchedStore(path / "metadata.db")
    for broker_id in (1, 2, 3):
        broker = Broker(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            endpoints=plaintext_endpoints("h", 1),
        )
        await store.commit([records.put(broker)])
    made = Cluster(store)
    await made.view.refresh()
    store.commit_count = store.read_count = 0
    try:
        yield made
    finally:
        await store.close()


def some(count: int, **more: object) -> list[NewTopic]:
    return [NewTopic(name=f"t{number}", **more) for number in range(count)]  # type: ignore[arg-type]


def is_created(outcome: object) -> bool:
    return isinstance(outcome, TopicPlan)


@pytest.mark.parametrize(("topic_count", "partition_count"), [(1, 1), (450, 1), (30, 8)])
async def test_topics_share_transactions_and_readings(
    tmp_path: Path, topic_count: int, partition_count: int
) -> None:
    async with cluster(tmp_path) as made:
        wanted = some(topic_count, partition_count=partition_count)
        outcomes = await made.admin.create_topics(wanted)
        assert list(outcomes) == [new.name for new in wanted]
        assert all(map(is_created, outcomes.values()))
        each = COMMIT_WRITES_MAX // (1 + partition_count)
        assert made.store.commit_count == -(-topic_count // each)
        assert made.store.read_count == 2  # before and after
        assert made.view.image.topics.keys() == outcomes.keys()
        for outcome in outcomes.values():
            assert isinstance(outcome, TopicPlan)
            shown = made.view.image.partitions(outcome.topic.name)
            assert [p.replicas for p in shown] == [p.replicas for p in outcome.partitions]


async def test_topics_of_one_request_spread_over_the_brokers_together(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.admin.create_topics(some(90))
        partitions = [p for ps in made.view.image.partitions_by_topic.values() for p in ps]
        assert set(Counter(p.leader for p in partitions).values()) == {30}
        assert len({p.replicas for p in partitions}) > 3


async def test_each_topic_of_a_request_has_its_own_outcome(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.admin.create_topics([NewTopic(name="t7"), NewTopic(name="a.b")])
        wanted = [
            *some(100),
            NewTopic(name="a_b"),
            NewTopic(name="new.one"),
            NewTopic(name="new_one"),
            NewTopic(name="wide", partition_count=200),
            NewTopic(name="none", partition_count=0),
            NewTopic(name="no name"),
        ]
        outcomes = await made.admin.create_topics(wanted)
        refused = {name: type(o) for name, o in outcomes.items() if not is_created(o)}
        assert refused == {
            "t7": TopicAlreadyExists,
            "a_b": InvalidTopic,
            "new_one": InvalidTopic,
            "none": InvalidPartitions,
            "no name": InvalidTopic,
        }
        created = {name for name, outcome in outcomes.items() if is_created(outcome)}
        assert await made.stored_names() == created | {"t7", "a.b"}
        assert len(made.view.image.partitions("wide")) == 200


async def test_topics_that_others_create_meanwhile_keep_no_other_from_being_created(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        rival = made.another_admin()
        theirs = {f"t{number}" for number in range(0, 100, 9)}

        async def create_first(number: int) -> None:
            if number == 1:
                await rival.create_topics([NewTopic(name=name) for name in theirs])

        made.store.before_commit = create_first
        outcomes = await made.admin.create_topics(some(100))
        lost = {name for name, outcome in outcomes.items() if not is_created(outcome)}
        assert lost == theirs
        assert all(isinstance(outcomes[name], TopicAlreadyExists) for name in lost)
        assert await made.stored_names() == outcomes.keys()


async def test_two_nodes_that_create_the_same_topics_at_once_make_each_of_them_once(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        others = made.another_admin()
        one, other = await asyncio.gather(
            made.admin.create_topics(some(200)), others.create_topics(some(200)[::-1])
        )
        for name in one:
            assert is_created(one[name]) != is_created(other[name])
        await made.view.refresh()
        for name, topic in made.view.image.topics.items():
            outcome = one[name] if is_created(one[name]) else other[name]
            assert isinstance(outcome, TopicPlan)
            assert topic.topic_id == outcome.topic.topic_id


async def test_what_is_not_begun_in_time_is_not_done_at_all(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        wanted = [*some(100), NewTopic(name="wide", partition_count=200)]
        outcomes = await made.admin.create_topics(wanted, seconds_max=0)
        late = {name for name, o in outcomes.items() if isinstance(o, RequestTimedOut)}
        created = {name for name, outcome in outcomes.items() if is_created(outcome)}
        assert created == {f"t{number}" for number in range(COMMIT_WRITES_MAX // 2)}
        assert late == outcomes.keys() - created
        assert await made.stored_names() == made.view.image.topics.keys() == created
        ids = [made.view.image.topics[name].topic_id for name in created]
        first = await made.admin.delete_topics(ids, seconds_max=0)
        assert all(isinstance(outcome, Deletion) for outcome in first.values())


async def test_a_large_topic_is_committed_by_itself_and_one_too_large_fails_by_itself(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        too_large = {"retention.ms": " " * BODY_SIZE_BYTES_MAX + "1"}
        wanted = [*some(44, configs=LARGE), NewTopic(name="huge", configs=too_large)]
        outcomes = await made.admin.create_topics(wanted)
        failed = {name: type(o) for name, o in outcomes.items() if not is_created(o)}
        assert failed == {"huge": ItemTooLarge}
        assert await made.stored_names() == outcomes.keys() - failed.keys()


async def test_a_store_that_goes_away_half_way_fails_what_is_left(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:

        async def go_away(number: int) -> None:
            if number == 2:
                raise OutcomeUnknown("no answer")
            if number == 4:
                raise StoreUnavailable("away")

        made.store.before_commit = go_away
        made.store.commit_count = 0
        outcomes = list((await made.admin.create_topics(some(300))).values())
        assert all(map(is_created, outcomes[:45]))
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes[45:90])
        assert all(map(is_created, outcomes[90:135]))
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes[135:])


async def test_validation_writes_nothing_and_takes_turns_with_everyone_else(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.create_task(take_turns())
        outcomes = await made.admin.create_topics(some(NEW_PARTITIONS_MAX), validate_only=True)
        others.cancel()
        assert all(map(is_created, outcomes.values()))
        assert made.store.commit_count == 0
        assert turns > 5


async def test_no_turn_of_the_loop_is_about_all_topics_of_a_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.admin.create_topics(some(3))  # what is loaded once
        with loop_turns() as turns:
            outcomes = await made.admin.create_topics(
                [NewTopic(name=f"u{number}", partition_count=2) for number in range(3_000)]
            )
            assert all(map(is_created, outcomes.values()))
            ids = [topic.topic_id for topic in made.view.image.topics.values()]
            await made.admin.delete_topics(ids)
        assert not made.view.image.topics
        print(f"the longest turn: {turns.longest_seconds * 1000:.1f} ms, {turns.longest}")
        assert turns.longest_seconds < LONGEST_SHARE_MAX * turns.total_seconds


async def test_more_partitions_than_one_request_may_create_are_refused_together(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        for wanted in (
            some(NEW_PARTITIONS_MAX + 1),
            [*some(9), NewTopic(name="wide", partition_count=NEW_PARTITIONS_MAX - 8)],
        ):
            with pytest.raises(PolicyViolation, match="Excessively large"):
                await made.admin.create_topics(wanted, validate_only=True)
        assert made.store.read_count == 0


async def test_clients_that_need_topics_at_once_have_them_created_together(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        names = [f"t{number}" for number in range(300)]
        topics = await asyncio.gather(*(made.admin.ensure_topic(name) for name in [*names, *names]))
        assert [topic.name for topic in topics] == [*names, *names]
        assert made.store.commit_count <= 1 + -(-len(names) // (COMMIT_WRITES_MAX // 2)) + 1
        failed = await made.admin.ensure_topics([*names, "t-more", "no name"])
        assert {name: type(error) for name, error in failed.items()} == {"no name": InvalidTopic}
        assert "t-more" in made.view.image.topics


async def test_each_call_that_needs_topics_is_held_to_the_limit_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_core.admin.topics.topic_plans.NEW_PARTITIONS_MAX", 30)

    async with cluster(tmp_path) as made:
        calls = [[f"c{call}-{number}" for number in range(20)] for call in range(4)]
        for failed in await asyncio.gather(*map(made.admin.ensure_topics, calls)):
            assert failed == {}
        too_many = [f"m{number}" for number in range(31)]
        failed = await made.admin.ensure_topics(too_many)
        assert failed.keys() == set(too_many)
        assert all(isinstance(error, PolicyViolation) for error in failed.values())
        assert await made.stored_names() == {name for names in calls for name in names}


async def test_who_gives_up_waiting_for_topics_leaves_those_of_others_to_be_created(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        first = asyncio.create_task(made.admin.ensure_topic("first"))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(made.admin.ensure_topic(f"t{n}")) for n in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        first.cancel()
        await asyncio.gather(*waiting[1:])
        assert {f"t{n}" for n in range(1, 5)} <= await made.stored_names()


async def test_topics_are_widened_and_deleted_together(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.admin.create_topics(some(90))
        made.store.commit_count = 0
        wider = [WiderTopic(f"t{number}", 3) for number in range(90)]
        outcomes = await made.admin.widen_topics(
            [*wider, WiderTopic("t-none", 3), WiderTopic("t-less", 1)]
        )
        assert all(is_created(outcomes[one.name]) for one in wider)
        assert isinstance(outcomes["t-none"], UnknownTopicOrPartition)
        assert made.store.commit_count == 3
        image = made.view.image
        assert {len(image.partitions(name)) for name in image.topics} == {3}
        made.store.commit_count = 0
        ids = [topic.topic_id for topic in image.topics.values()]
        unknown = uuid4()
        deleted = await made.admin.delete_topics([*ids, unknown])
        assert made.store.commit_count == 2
        assert isinstance(deleted.pop(unknown), UnknownTopicId)
        assert all(isinstance(outcome, Deletion) for outcome in deleted.values())
        assert not made.view.image.topics
        assert made.view.image.deleted_topics.keys() == set(ids)
