"""What the server's assignors promise, for any members and topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.metadata.coordination.consumer_groups import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from tidelog_node.groups.assignment.assignors import ASSIGNORS, Assignor
from tidelog_node.groups.assignment.range_assignor import assign_ranges
from tidelog_node.groups.assignment.simple_assignor import assign_shared
from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.uniform_assignor import assign_uniformly

from tests.node.coordinator.lines import lines_of

TOPICS = [UUID(int=number) for number in range(1, 5)]
NAMES = [f"m{number}" for number in range(7)]

counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
names = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


def group(
    subscriptions: Mapping[str, frozenset[UUID]],
    targets: Mapping[str, Partitions] | None = None,
    instances: Mapping[str, str] | None = None,
) -> dict[str, Subscriber]:
    return {
        name: Subscriber(
            instance_id=(instances or {}).get(name),
            topic_ids=topic_ids,
            target=(targets or {}).get(name, NO_PARTITIONS),
        )
        for name, topic_ids in subscriptions.items()
    }


@st.composite
def same_subscriptions(draw: st.DrawFn) -> tuple[dict[str, frozenset[UUID]], dict[UUID, int]]:
    counts = draw(counts_of_topics)
    return {name: frozenset(counts) for name in draw(names)}, counts


@st.composite
def any_subscriptions(draw: st.DrawFn) -> tuple[dict[str, frozenset[UUID]], dict[UUID, int]]:
    counts = draw(counts_of_topics)
    some = st.frozensets(st.sampled_from(sorted(counts)))
    return {name: draw(some) for name in draw(names)}, counts


def check_complete(
    assigned: Mapping[str, Partitions],
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
) -> None:
    """Every partition that anyone subscribes to is with one member, who subscribes to it."""
    wanted = {
        TopicIdPartition(topic_id, number)
        for topic_id in frozenset().union(*subscriptions.values())
        for number in range(counts[topic_id])
    }
    assert sorted(p for share in assigned.values() for p in share) == sorted(wanted)
    assert assigned.keys() == subscriptions.keys()
    for name, share in assigned.items():
        assert {p.topic_id for p in share} <= subscriptions[name]


def check_balanced(
    assigned: Mapping[str, Partitions], subscriptions: Mapping[str, frozenset[UUID]]
) -> None:
    """No partition is with a member that has two or more above another who could have it."""
    for share in assigned.values():
        for topic_id in {p.topic_id for p in share}:
            for other, topic_ids in subscriptions.items():
                if topic_id in topic_ids:
                    assert len(share) - len(assigned[other]) < 2


def kept_count(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> int:
    return sum(len(after[name] & before[name]) for name in after.keys() & before.keys())


@settings(deadline=None)
@given(any_subscriptions(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_goes_to_one_subscriber_and_always_the_same(
    parts: tuple[dict[str, frozenset[UUID]], dict[UUID, int]], assignor: str
) -> None:
    subscriptions, counts = parts
    assign: Assignor = ASSIGNORS[assignor]
    assigned = assign(group(subscriptions), counts)
    check_complete(assigned, subscriptions, counts)
    shuffled = dict(reversed(subscriptions.items()))
    assert assign(group(shuffled), counts) == assigned


@settings(deadline=None)
@given(same_subscriptions())
def test_uniform_shares_differ_by_one_at_most(
    parts: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
) -> None:
    subscriptions, counts = parts
    sizes = [len(share) for share in assign_uniformly(group(subscriptions), counts).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(any_subscriptions(), any_subscriptions())
def test_uniform_stays_balanced_whatever_changes(
    before: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
    after: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
) -> None:
    targets = assign_uniformly(group(before[0]), before[1])
    check_balanced(targets, before[0])
    assigned = assign_uniformly(group(after[0], targets), after[1])
    check_complete(assigned, *after)
    check_balanced(assigned, after[0])
    assert assign_uniformly(group(after[0], assigned), after[1]) == assigned


@settings(deadline=None)
@given(same_subscriptions(), st.sampled_from([*NAMES, "new"]))
def test_uniform_moves_no_more_than_it_must_when_a_member_comes_or_goes(
    parts: tuple[dict[str, frozenset[UUID]], dict[UUID, int]], name: str
) -> None:
    subscriptions, counts = parts
    before = assign_uniformly(group(subscriptions), counts)
    changed = dict(subscriptions)
    if name not in changed:
        changed[name] = frozenset(counts)
    elif len(changed) > 1:
        del changed[name]
    after = assign_uniformly(group(changed, before), counts)
    check_complete(after, changed, counts)
    if len(changed) > len(subscriptions):
        assert kept_count(before, after) == sum(counts.values()) - len(after[name])
    else:
        stayed = {other: share for other, share in before.items() if other in changed}
        assert kept_count(stayed, after) == sum(len(share) for share in stayed.values())


def test_uniform_gives_nobody_what_two_were_to_have() -> None:
    """Targets of a damaged record: the first keeps the partition."""
    topic = TOPICS[0]
    both = frozenset({TopicIdPartition(topic, 0)})
    subscriptions = {"a": frozenset({topic}), "b": frozenset({topic})}
    assigned = assign_uniformly(group(subscriptions, {"a": both, "b": both}), {topic: 2})
    check_complete(assigned, subscriptions, {topic: 2})


@settings(deadline=None)
@given(same_subscriptions())
def test_range_gives_neighbours_and_the_same_of_topics_of_one_size(
    parts: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
) -> None:
    subscriptions, counts = parts
    assigned = assign_ranges(group(subscriptions), counts)
    for share in assigned.values():
        numbers = {t: sorted(p.partition for p in share if p.topic_id == t) for t in counts}
        for some in numbers.values():
            assert some == list(range(some[0], some[-1] + 1)) if some else True
        for one in counts:
            for other in counts:
                if counts[one] == counts[other]:
                    assert numbers[one] == numbers[other]
    sizes = {t: [sum(p.topic_id == t for p in s) for s in assigned.values()] for t in counts}
    assert all(max(some) - min(some) <= 1 for some in sizes.values())


def test_range_puts_static_members_first_by_their_names() -> None:
    topic = TOPICS[0]
    members = group(
        dict.fromkeys(("a", "b", "c"), frozenset({topic})), instances={"b": "z", "c": "y"}
    )
    assigned = assign_ranges(members, {topic: 4})
    shares = {name: sorted(p.partition for p in share) for name, share in assigned.items()}
    assert shares == {"c": [0, 1], "b": [2], "a": [3]}


def test_uniform_takes_time_in_proportion_to_members_and_partitions() -> None:
    def lines(count: int) -> int:
        topic_ids = [UUID(int=number) for number in range(3)]
        members = {
            f"m{number}": Subscriber(
                instance_id=None, topic_ids=frozenset(topic_ids[: 1 + number % 3])
            )
            for number in range(count)
        }
        return lines_of(lambda: assign_uniformly(members, dict.fromkeys(topic_ids, count)))

    assert lines(800) < 10 * lines(100)


def test_simple_gives_nobody_a_partition_that_is_gone() -> None:
    topic = TOPICS[0]
    gone = frozenset({TopicIdPartition(topic, 5)})
    members = {
        f"m{number}": Subscriber(instance_id=None, topic_ids=frozenset({topic}), target=gone)
        for number in range(6)
    }
    shares = assign_shared(members, {topic: 2})
    assert {p.partition for share in shares.values() for p in share} == {0, 1}


def test_simple_takes_time_in_proportion_to_members_and_partitions() -> None:
    def lines(count: int) -> int:
        members = {
            f"m{number}": Subscriber(instance_id=None, topic_ids=frozenset(TOPICS[:2]))
            for number in range(count)
        }
        return lines_of(lambda: assign_shared(members, dict.fromkeys(TOPICS, count // 4)))

    assert lines(800) < 10 * lines(100)


def test_nobody_and_nothing_are_fine() -> None:
    for assign in ASSIGNORS.values():
        assert assign({}, {}) == {}
        assert assign(group({"a": frozenset()}), {}) == {"a": frozenset()}


@settings(deadline=None)
@given(any_subscriptions(), any_subscriptions())
def test_simple_leaves_no_partition_without_member_and_no_member_without_partition(
    before: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
    after: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
) -> None:
    targets = assign_shared(group(before[0]), before[1])
    subscriptions, counts = after
    assigned = assign_shared(group(subscriptions, targets), counts)
    wanted = {
        TopicIdPartition(topic_id, number)
        for topic_id in frozenset().union(*subscriptions.values())
        for number in range(counts[topic_id])
    }
    assert frozenset().union(*assigned.values()) == wanted
    for name, topic_ids in subscriptions.items():
        assert {p.topic_id for p in assigned[name]} <= topic_ids
        assert bool(assigned[name]) == any(counts[topic_id] for topic_id in topic_ids)
        if len(assigned[name]) > 1:
            assert not any(assigned[name] & assigned[other] for other in assigned if other != name)


@settings(deadline=None)
@given(same_subscriptions())
def test_simple_spreads_members_that_subscribe_to_the_same(
    parts: tuple[dict[str, frozenset[UUID]], dict[UUID, int]],
) -> None:
    subscriptions, counts = parts
    assigned = assign_shared(group(subscriptions), counts)
    members = Counter(p for share in assigned.values() for p in share)
    sizes = [len(share) for share in assigned.values()]
    assert max(sizes) - min(sizes) <= 1
    assert max(members.values(), default=0) - min(members.values(), default=0) <= 1
    assert assign_shared(group(subscriptions, assigned), counts) == assigned


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 12))
def test_simple_moves_few_who_share_when_a_member_comes_or_goes(
    member_count: int, partition_count: int, leaver: int
) -> None:
    """Of those who share a partition, at most one moves; where none has to, none does."""
    topic = TOPICS[0]
    counts = {topic: partition_count}
    names = [f"m{number:02}" for number in range(member_count + partition_count)]
    before = assign_shared(group(dict.fromkeys(names, frozenset({topic}))), counts)
    came = assign_shared(group(dict.fromkeys([*names, "a"], frozenset({topic})), before), counts)
    assert {name: came[name] for name in names} == before
    left = [name for number, name in enumerate(names) if number != leaver % len(names)]
    after = assign_shared(group(dict.fromkeys(left, frozenset({topic})), before), counts)
    assert sum(after[name] != before[name] for name in left) <= 1
