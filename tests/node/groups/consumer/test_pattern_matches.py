"""Patterns and the event loop: how long matching holds it, and what goes on between its turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.errors import NotCoordinator
from tidelog_core.metadata.coordination.consumer_groups import LEFT_FOR_NOW_EPOCH
from tidelog_core.metadata.records import Topic
from tidelog_core.model import TopicPartition
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.groups.consumer.pattern_matches import CHANGES_KEPT_MIN, PatternMatcher
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.heartbeat_answer import LEAVE_EPOCH, HeartbeatAnswer
from tidelog_node.groups.migration.consumer_protocol import encode_assignment

from tests.support.consumer_members import beat, consumer_group_of, enter
from tests.support.coordinator_node import (
    Node,
    delete_topic,
    lead_offsets,
    new_cluster,
    node,
    play,
    topic_id,
)
from tests.support.group_commits import create_topics
from tests.support.group_requests import join, subscription, sync
from tests.support.memory_store import MemoryMetadataStore
from tests.support.virtual_time import VirtualTimeLoop

# RE2 gives up its cache of states for it: a random name takes up to a millisecond.
HOSTILE = "(?:.*a.{100}){3}|" * 2 + "z"
HOLD_SECONDS_MAX = 0.05  # of processor time: ten turns
SESSION_S = 45  # the default


def hostile_names(count: int, seed: int = 17) -> tuple[str, ...]:
    random = Random(seed)
    return tuple("".join(random.choices("ab", k=249)) for _ in range(count))


@contextlib.asynccontextmanager
async def loop_watched() -> AsyncIterator[None]:
    """Fail where a turn of the loop takes too much of the processor."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    gc.collect()  # so that no collection of what other tests left is counted
    gc.disable()
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield
        await asyncio.sleep(0)
    finally:
        gc.enable()
        watching.cancel()
    assert longest < HOLD_SECONDS_MAX


async def a_cluster(*names: str) -> MemoryMetadataStore:
    store = MemoryMetadataStore(latency=0)
    await new_cluster(store)
    await create_topics(store, names)
    return store


class SlowLoop(VirtualTimeLoop):
    """Each look at the clock takes time: so as many turns end as one likes, with few names."""

    match_seconds = 0.0

    def time(self) -> float:
        self.stall(self.match_seconds)
        return super().time()


def run_slowly(main: Coroutine[Any, Any, None]) -> None:
    loop = SlowLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


@contextlib.contextmanager
def slow() -> Iterator[None]:
    """Have every turn end with the first look at the clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SlowLoop)
    loop.match_seconds = 1.0
    try:
        yield
    finally:
        loop.match_seconds = 0.0


PLAIN = tuple(f"plain-{number}" for number in range(400))


def topics_of(names: Iterable[str]) -> dict[str, Topic]:
    return {name: Topic(name=name, topic_id=topic_id(name), partition_count=1) for name in names}


async def beats(broker: Node, member_id: str, generation: int) -> None:
    """Send a classic member's heartbeats in time."""
    while True:
        await broker.coordinator.heartbeat("g", GroupCaller(member_id, None, generation))
        await asyncio.sleep(1)


def topics_in(answer: HeartbeatAnswer) -> set[UUID]:
    return {partition.topic_id for partition in answer.assigned or ()}


class TestTheLoopIsNotHeld:
    """By one request about hundreds of names that take long to match."""

    names = hostile_names(300)

    async def test_by_a_heartbeat_with_a_pattern_that_is_new(self) -> None:
        async with node(await a_cluster(*self.names)) as broker:
            async with loop_watched():
                answer = await enter(broker, "m", (), subscribed_pattern=HOSTILE)
            assert answer.error is ErrorCode.none

    async def test_by_a_new_coordinator_of_the_group(self) -> None:
        """Whichever request is the first to ask what the group subscribes to."""
        store = await a_cluster(*self.names)
        async with node(store) as broker:
            epoch = (await enter(broker, "m", (), subscribed_pattern=HOSTILE)).member_epoch
        async with node(store) as broker, loop_watched():
            assert (await beat(broker, "m", epoch)).member_epoch == epoch
        async with node(store) as broker, loop_watched():
            await broker.coordinator.delete_offsets("g", {"t": [0]})
        async with node(store) as broker, loop_watched():
            await broker.join(join(new="classic", protocols=(("range", subscription("t")),)))

    async def test_by_one_new_topic_and_many_patterns(self) -> None:
        store = await a_cluster()
        async with node(store) as broker:
            epoch = 0
            for number in range(100):
                pattern = f"{HOSTILE}{number}"
                epoch = (
                    await enter(broker, f"m{number}", (), subscribed_pattern=pattern)
                ).member_epoch
            await create_topics(store, self.names[:3])
            await broker.view.refresh()
            async with loop_watched():
                await beat(broker, "m99", epoch)


class TestWhileAHeartbeatWaits:
    """For its pattern: others are served, and the world goes on."""

    def test_the_session_of_its_member_does_not_end(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                loop = asyncio.get_running_loop()
                await enter(broker, "idle")
                await enter(broker, "m")
                began = loop.time()
                with slow():
                    answer = await beat(broker, "m", 2, subscribed_pattern="plain-[1-3]")
                assert loop.time() - began > SESSION_S
                # One epoch for the member that was silent all the time, one for the pattern.
                assert (answer.error, answer.member_epoch) == (ErrorCode.none, 4)
                assert {
                    member.member_id for member in (await consumer_group_of(broker)).roster
                } == {"m"}

        run_slowly(main())

    def test_the_session_of_a_static_member_that_comes_back_does_not_end(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                await enter(broker, "m", instance_id="i")
                await beat(broker, "m", LEFT_FOR_NOW_EPOCH, instance_id="i")
                with slow():
                    answer = await enter(
                        broker, "again", instance_id="i", subscribed_pattern="plain-[1-3]"
                    )
                assert answer.error is ErrorCode.none
                assert topic_id("t") in topics_in(answer)
                # In the place that it had: nothing was computed for its leaving.
                assert answer.member_epoch == 2

        run_slowly(main())

    @pytest.mark.parametrize("stranger_epoch", [0, 5])
    def test_sessions_of_others_end(self, stranger_epoch: int) -> None:
        """Whoever brings one slow pattern after the other keeps no dead member in a group."""

        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                await enter(broker, "dead")

                async def bring_patterns(name: str) -> None:
                    for number in itertools.count():
                        pattern = f"{name}{number}"
                        await beat(
                            broker,
                            pattern,
                            stranger_epoch,
                            subscribed_pattern=pattern,
                            rebalance_timeout_ms=60_000,
                            owned=frozenset(),
                        )
                        await asyncio.sleep(0.1)

                with slow():
                    strangers = [asyncio.create_task(bring_patterns(name)) for name in "ab"]
                    await asyncio.sleep(2 * SESSION_S)
                    shard = broker.coordinator._groups.shard_of("g")
                    members = [one.member_id for one in shard.groups["g"].group.roster]
                for stranger in strangers:
                    stranger.cancel()
                assert "dead" not in members

        run_slowly(main())

    def test_heartbeats_that_are_refused_wait_for_no_pattern_of_their_own(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                await enter(broker, "m")
                loop = asyncio.get_running_loop()
                began = loop.time()
                with slow():
                    answer = await beat(broker, "stranger", 5, subscribed_pattern="plain-[1-3]")
                assert answer.error is ErrorCode.unknown_member_id
                assert loop.time() - began < len(PLAIN) / 10

        run_slowly(main())

    def test_the_session_of_a_classic_member_of_its_group_does_not_end_with_a_new_coordinator(
        self,
    ) -> None:
        async def main() -> None:
            store = await a_cluster(*PLAIN)
            ranged = join(new="old", protocols=(("range", subscription("t")),))
            async with node(store) as broker:
                await enter(broker, "m", (), subscribed_pattern="plain-[1-3]")
                member_id = (await broker.join(ranged)).member_id
                again = join(member_id, protocols=ranged.protocols)
                generation = (await broker.join(again)).generation
            async with node(store) as broker:
                with slow():
                    beating = asyncio.create_task(beat(broker, "m", 1))
                    answer = await broker.coordinator.sync("g", sync(member_id, generation))
                    await beating
                assert answer.error is ErrorCode.none

        run_slowly(main())

    def test_a_classic_static_member_that_comes_back_with_one_keeps_its_place(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                protocols = (("range", subscription("t")),)
                joined = await broker.join(join(new="old", instance="i", protocols=protocols))
                assigned = {"old": encode_assignment([TopicPartition("t", 0)], version=1)}
                synced = sync("old", joined.generation, assigned, instance="i")
                assert (await broker.coordinator.sync("g", synced)).error is ErrorCode.none
                with slow():
                    answer = await enter(
                        broker, "again", (), subscribed_pattern="plain-[1-3]", instance_id="i"
                    )
                # A group that had become empty meanwhile would be further.
                assert answer.member_epoch == joined.generation + 1
                members = {member.member_id for member in (await consumer_group_of(broker)).roster}
                assert members == {"again"}

        run_slowly(main())

    @pytest.mark.parametrize("epoch", [LEAVE_EPOCH, LEFT_FOR_NOW_EPOCH])
    def test_a_join_does_not_overtake_the_leave_before_it(self, epoch: int) -> None:
        async def main() -> None:
            store = await a_cluster(*PLAIN)
            async with node(store) as broker:
                await enter(broker, "m", (), subscribed_pattern="plain-.*", instance_id="i")
                await create_topics(store, ("plain-new", "plain-newer"))
                await broker.view.refresh()
                with slow():
                    leaving = asyncio.create_task(beat(broker, "m", epoch, instance_id="i"))
                    await asyncio.sleep(0)
                    joined = await enter(broker, "again", ("t",), instance_id="i")
                assert (await leaving).error is ErrorCode.none
                assert joined.error is ErrorCode.none

        run_slowly(main())

    def test_another_member_may_bring_another_pattern(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                with slow():
                    both = await asyncio.gather(
                        enter(broker, "a", (), subscribed_pattern="plain-1"),
                        enter(broker, "b", (), subscribed_pattern="plain-2"),
                    )
                assert [topics_in(one) for one in both] == [
                    {topic_id("plain-1")},
                    {topic_id("plain-2")},
                ]

        run_slowly(main())

    def test_topics_that_come_are_matched_too_and_those_that_go_are_not_given_out(self) -> None:
        async def main() -> None:
            store = await a_cluster(*PLAIN)
            async with node(store) as broker:
                with slow():
                    entering = asyncio.create_task(
                        enter(broker, "m", (), subscribed_pattern="plain-.|late")
                    )
                    await asyncio.sleep(0)
                    await create_topics(store, ("late",))
                    await delete_topic(store, broker.view, "plain-7")
                    assert not entering.done()
                    answer = await entering
                wanted = {f"plain-{number}" for number in range(10)} - {"plain-7"} | {"late"}
                assert topics_in(answer) == {topic_id(name) for name in wanted}

        run_slowly(main())

    def test_its_group_may_move_to_another_coordinator(self) -> None:
        async def main() -> None:
            store = await a_cluster(*PLAIN)
            async with node(store) as old, node(store, broker_id=2) as new:
                with slow():
                    entering = asyncio.create_task(
                        enter(old, "m", (), subscribed_pattern="plain-[1-3]")
                    )
                    await asyncio.sleep(0)
                    await lead_offsets(store, old.view, 2)
                    with pytest.raises(NotCoordinator):
                        await entering
                await new.view.refresh()
                answer = await enter(new, "m", (), subscribed_pattern="plain-[1-3]")
                assert len(topics_in(answer)) == 3

        run_slowly(main())

    def test_a_classic_group_may_still_be_taken_over(self) -> None:
        async def main() -> None:
            async with node(await a_cluster(*PLAIN)) as broker:
                protocols = (("range", subscription("t")),)
                generation = (await broker.member("old", protocols=protocols)).generation
                assigned = encode_assignment([TopicPartition("t", 0)], version=1)
                await broker.sync("old", generation, {"old": assigned})
                beating = asyncio.create_task(beats(broker, "old", generation))
                with slow():
                    answer = await enter(broker, "m", (), subscribed_pattern="plain-[1-3]")
                beating.cancel()
                assert answer.error is ErrorCode.none
                members = {member.member_id for member in (await consumer_group_of(broker)).roster}
                assert members == {"old", "m"}

        run_slowly(main())


class WatchedTopics(dict[str, Topic]):
    """Counts the names that anybody looks at one after the other."""

    walked_count = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            WatchedTopics.walked_count += 1
            yield name


class TestPatternMatcher:
    """What a node knows of patterns and of topics."""

    @pytest.mark.parametrize("seed", range(5))
    async def test_it_finds_what_each_image_has_for_patterns_of_any_age(self, seed: int) -> None:
        print(f"seed {seed}")
        random = Random(seed)
        names = [f"{letter}{number}" for letter in "abc" for number in range(CHANGES_KEPT_MIN)]

        matcher = PatternMatcher({})
        kept = {}
        for _ in range(12):
            for _ in range(random.choice((0, 1, 4))):
                some = random.sample(names, random.choice((0, 3, 2_000)))
                topics = topics_of(some)
                matcher.take_topics(topics, matcher.topics.keys() | topics.keys())
            patterns = random.sample(["a.*", "b.*", "c1.*", "("], random.randint(1, 4))
            matches = await matcher.match(map(PatternView, patterns))
            kept.update(matches)
            for (pattern, _), one in matches.items():
                assert one.is_current
                first = pattern.removesuffix(".*")
                expected = {name for name in matcher.topics if name.startswith(first)}
                assert one.names & matcher.topics.keys() == expected
                assert len(one.names) <= len(names)

    async def test_an_image_without_new_topics_costs_a_pattern_nothing(self) -> None:
        topics = WatchedTopics(topics_of(PLAIN))
        matcher = PatternMatcher(topics)
        kept = await matcher.match(PatternView(f"plain-{number}.*") for number in range(10))
        WatchedTopics.walked_count = 0
        # A partition of this topic has another leader, and there is one topic more.
        matcher.take_topics(WatchedTopics(topics), {"plain-3"})
        await matcher.match(kept)
        matcher.take_topics(WatchedTopics(topics | topics_of(["plain-9x"])), {"plain-9x"})
        await matcher.match(kept)
        assert WatchedTopics.walked_count == 0
        assert "plain-9x" in kept[PatternView("plain-9.*")].names

    async def test_groups_share_what_a_pattern_matches_and_the_last_one_takes_it_along(
        self,
    ) -> None:
        matcher = PatternMatcher(topics_of(PLAIN))
        view = PatternView("plain-1")
        first, second = await matcher.match([view]), await matcher.match([view])
        assert first[view] is second[view]
        left = weakref.ref(first[view])
        first, second = {}, {}
        assert left() is None

    async def test_a_stored_pattern_that_is_refused_by_now_matches_nothing(self) -> None:
        """Its group is served on; the pattern's member hears of it when it sends it again."""
        matcher = PatternMatcher(topics_of(["a", "b"]))
        matches = await matcher.match([PatternView("("), PatternView("a")])
        assert {view.pattern: one.names for view, one in matches.items()} == {
            "(": set(),
            "a": {"a"},
        }

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_viewer_finds_what_it_sees_of_each_image_and_is_asked_once_for_a_name(
        self, seed: int
    ) -> None:
        print(f"seed {seed}")
        random = Random(seed)
        names = [f"{letter}{number}" for letter in "ab" for number in range(300)]
        matcher, viewers = PatternMatcher({}), (EvenOnes(), EvenOnes())
        kept = {}
        for _ in range(10):
            topics = topics_of(random.sample(names, random.choice((0, 3, 400))))
            matcher.take_topics(topics, matcher.topics.keys() | topics.keys())
            views = [PatternView("a.*", random.choice(viewers)), PatternView(".*", viewers[0])]
            kept.update(await matcher.match(views))
            for view in views:
                assert kept[view].is_current
                assert kept[view].names & topics.keys() == {
                    name
                    for name in topics
                    if name.startswith(view.pattern.removesuffix(".*")) and is_even(name)
                }
        await matcher.match(kept)
        asked = viewers[0].asked.copy()
        matcher.take_topics({**matcher.topics, **topics_of(["b1000"])}, {"b1000"})
        await matcher.match(kept)
        assert viewers[0].asked - asked == {"b1000": 1}


def is_even(name: str) -> bool:
    return int(name[1:]) % 2 == 0


class EvenOnes:
    """A viewer that sees the topics with an even number."""

    def __init__(self) -> None:
        self.asked = Counter[str]()

    def sees(self, topic: str) -> bool:
        self.asked[topic] += 1
        return is_even(topic)


def test_patterns_of_refused_heartbeats_are_not_kept() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "m")
            for number in range(20):
                answer = await beat(broker, "stranger", 5, subscribed_pattern=f"{number}(x)")
                assert answer.error is ErrorCode.unknown_member_id
            group = await consumer_group_of(broker)
            assert len(group.subscriptions._matches) <= 1

    play(scenario)
