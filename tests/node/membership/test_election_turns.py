"""A round of elections over many partitions keeps nobody waiting."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from uuid import UUID

import pytest
from tidelog_core import turns
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, Partition, Topic, put
from tidelog_core.metadata.store import ABSENT, ItemKey, Write
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.own_lease import OwnLease
from tidelog_node.membership import election_round
from tidelog_node.membership.election_loop import ElectionLoop
from tidelog_node.membership.election_round import ElectionRound
from tidelog_node.membership.membership import Membership

from tests.support.loop_turns import loop_turns
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.replication_cluster import make_brokers, make_lease

TIMES = LeaseTimes()
DEAD, SELF, OTHER = 1, 2, 3
LONGEST_SHARE_MAX = 0.4  # of the time that all turns take


async def make_elections(
    *,
    topics: int,
    partitions: int,
    leaders: tuple[int, ...] = (DEAD,),
    last_topic: str | None = None,
) -> tuple[ElectionLoop, Membership, MemoryMetadataStore]:
    """Return the elections of a node that has just found a peer dead; leaders go in turn."""
    store = MemoryMetadataStore(latency=0)
    brokers: list[Broker] = list(make_brokers(DEAD, SELF, OTHER, version=0).values())
    await store.commit([put(broker) for broker in brokers])
    await store.commit([put(make_lease(DEAD, version=ABSENT), is_logged=False)])
    for number in range(topics):
        topic_id = UUID(int=number + 1)
        items = [
            Partition(
                topic_id=topic_id,
                partition=index,
                replicas=(DEAD, SELF, OTHER),
                leader=leaders[(number * partitions + index) % len(leaders)],
                leader_epoch=0,
                isr=(DEAD, SELF, OTHER),
            )
            for index in range(partitions)
        ]
        name = last_topic if last_topic is not None and number == topics - 1 else f"t{number}"
        topic = Topic(name=name, topic_id=topic_id, partition_count=partitions, configs={})
        for start in range(0, partitions, 80):
            some = items[start : start + 80]
            await store.commit([put(item, is_logged=False) for item in some])
        await store.commit([put(topic)])
    view = ClusterView(store)
    await view.refresh()
    now_ms = 0.0
    membership = Membership(SELF, times=TIMES, elector=LeaderElector(SELF), clock=lambda: now_ms)
    membership.start([])
    for counter in (1, 2, 3, 4):
        now_ms += TIMES.renew_ms + 100
        membership.observe([make_lease(DEAD), make_lease(OTHER, counter)], started_ms=now_ms)
    assert membership.dead == {DEAD}
    own = OwnLease(SELF, UUID(int=SELF), times=TIMES, found=None)
    own.on_renewed(own.begin_renewal(now_ms), started_ms=now_ms, now_ms=now_ms)
    membership.hold(own)
    membership.on_cluster_read(now_ms)
    node = node_context(store, view, broker_id=SELF, membership=membership)
    elections = ElectionLoop(node, membership=membership)
    elections._grace_until_ms = now_ms  # It has been up for a while.
    store.commits.clear()
    return elections, membership, store


def written(store: MemoryMetadataStore) -> list[list[tuple[ItemKey, bool]]]:
    """Return each commit's partitions, and whether it was a takeover."""
    return [
        [(w.id, w.body is not None and w.body["leader_epoch"] == 1) for w in writes]
        for writes in store.commits
        if writes[0].is_logged
    ]


def note_rounds(elections: ElectionLoop, monkeypatch: pytest.MonkeyPatch) -> list[ElectionRound]:
    """Return the list that gets every round that is begun."""
    rounds: list[ElectionRound] = []
    begin = elections._begin

    async def begin_noted() -> ElectionRound:
        rounds.append(await begin())
        return rounds[-1]

    monkeypatch.setattr(elections, "_begin", begin_noted)
    return rounds


@pytest.mark.parametrize(("topics", "partitions"), [(1500, 2), (1, 3000)])
async def test_a_look_at_thousands_of_partitions_goes_in_turns(
    topics: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.001)

    elections, *_ = await make_elections(
        topics=topics, partitions=partitions, leaders=(SELF, OTHER)
    )
    state = await elections._begin()
    with loop_turns() as seen:
        await elections._leaderless(state)
        await state.decide(state.names)
    share = seen.longest_seconds / seen.total_seconds
    print(f"{seen.longest_seconds * 1000:.1f} ms, {share:.0%}")
    assert share < LONGEST_SHARE_MAX, seen.longest


async def test_a_round_takes_over_so_many_and_the_next_ones_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election_round, "TAKEOVERS_PER_ROUND_MAX", 5)

    elections, _, store = await make_elections(topics=6, partitions=3, leaders=(DEAD, OTHER))
    assert [await elections.round() for _ in range(2)] == [5, 4 + 9]
    first, *others = written(store)
    assert all(is_takeover for _, is_takeover in first)
    rest = [entry for some in others for entry in some]
    # Followers wait until everything is led.
    assert [is_takeover for _, is_takeover in rest] == [True] * 4 + [False] * 9
    assert len({key for key, _ in first + rest}) == 18


async def test_a_round_of_one_large_topic_takes_over_no_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election_round, "TAKEOVERS_PER_ROUND_MAX", 50)

    elections, *_ = await make_elections(topics=1, partitions=120)
    assert [await elections.round() for _ in range(4)] == [50, 50, 20, 0]


async def test_reserved_topics_then_dead_leaders_are_written_before_the_rest_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elections, _, store = await make_elections(
        topics=40,
        partitions=1,
        leaders=(OTHER,) * 18 + (DEAD,) * 2,
        last_topic=CONSUMER_OFFSETS_TOPIC,
    )
    rounds = note_rounds(elections, monkeypatch)
    left: list[tuple[int, int]] = []

    def note(_: Sequence[Write]) -> None:
        left.append((rounds[-1].takeovers_left, rounds[-1].isr_shrinks_left))

    store.on_commit = note
    assert await elections.round() == 40
    takeovers_max = election_round.TAKEOVERS_PER_ROUND_MAX
    shrinks_max = election_round.ISR_SHRINKS_PER_ROUND_MAX
    assert left == [
        (takeovers_max - 1, shrinks_max),
        (takeovers_max - 4, shrinks_max),
        (takeovers_max - 4, shrinks_max - 36),
    ]


async def test_a_leader_found_dead_between_two_turns_has_its_partition_changed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(election_round, "PARTITIONS_PER_STEP", 10)

    elections, membership, store = await make_elections(topics=1, partitions=60, leaders=(OTHER,))
    rounds = note_rounds(elections, monkeypatch)
    in_round = asyncio.create_task(elections.round())
    for _ in range(1000):
        if rounds and rounds[0].isr_shrinks_left <= election_round.ISR_SHRINKS_PER_ROUND_MAX - 20:
            break
        await asyncio.sleep(0)
    released = make_lease(OTHER, 0, version=5)
    for version in range(released.version):
        await store.commit([put(make_lease(OTHER, version=version), is_logged=False)])
    sent: list[ItemKey] = []
    store.on_commit = lambda writes: sent.extend(write.id for write in writes)
    membership.observe([make_lease(DEAD), released], started_ms=membership.now_ms())
    assert membership.dead == {DEAD, OTHER}
    await in_round
    assert 20 <= len(set(sent)) == len(sent)


async def test_what_is_noted_while_a_round_decides_is_looked_at_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    elections, membership, _ = await make_elections(topics=20, partitions=2, leaders=(SELF, OTHER))
    membership.elector.start(elections._node.view.image.partitions("t7"))
    in_round = asyncio.create_task(elections.round())
    await asyncio.sleep(0)
    assert not in_round.done()
    elections.visit_soon("t7")
    await in_round
    assert "t7" in elections._changed


async def test_a_lease_read_between_two_turns_loses_what_was_decided_on_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker renews and then releases its lease: it is dead in both readings."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    elections, membership, store = await make_elections(topics=30, partitions=1)
    rounds = note_rounds(elections, monkeypatch)
    in_round = asyncio.create_task(elections.round())
    for _ in range(1000):
        if rounds and rounds[0].takeovers_left <= election_round.TAKEOVERS_PER_ROUND_MAX - 10:
            break
        await asyncio.sleep(0)
    released = make_lease(DEAD, 0, version=1)
    await store.commit([put(released, is_logged=False)])
    membership.observe(
        [dataclasses.replace(released, version=2), make_lease(OTHER, 4)],
        started_ms=membership.now_ms(),
    )
    assert membership.dead == {DEAD}
    count = await in_round
    assert 0 < count <= 20
    # What was lost is decided again, on the lease as it is now.
    assert await elections.round() == 30 - count
