"""Names, assignments and settings: the pure part of administration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.admin.names import Collisions, validate_topic_name
from tidelog_core.admin.settings.configs import Alteration, AlterOperation, alter_topic_configs
from tidelog_core.admin.topics.assignment import placer, spread
from tidelog_core.admin.topics.topic_plans import (
    NewTopic,
    TopicPlanner,
    default_topic,
    plan_deletion,
)
from tidelog_core.config import NodeConfig, TopicConfig, parse_config, settings_of, topic_config
from tidelog_core.errors import InvalidConfig, InvalidReplicationFactor, InvalidTopic
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC


def brokers(count: int, racks: int = 0) -> Mapping[int, Broker]:
    return {
        n: Broker(
            broker_id=n,
            incarnation=UUID(int=n),
            endpoints=plaintext_endpoints("h", n),
            rack=f"rack-{n % racks}" if racks else None,
        )
        for n in range(count)
    }


@given(st.text(alphabet="abcXYZ019._-", min_size=1, max_size=249))
def test_legal_names_are_allowed_but_for_dots_alone(name: str) -> None:
    if name in (".", ".."):
        with pytest.raises(InvalidTopic):
            validate_topic_name(name)
    else:
        validate_topic_name(name)


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "a\n", "x" * 250, "a:b", "\u0661"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopic, match="Topic name is invalid"):
        validate_topic_name(name)


def test_names_collide_where_only_dot_and_underscore_differ() -> None:
    assert Collisions(["x", "a_b.c"]).find("a.b_c") == "a_b.c"
    assert Collisions(["a-b", "ab"]).find("a.b") is None
    assert Collisions(["a_b"]).find("ab") is None
    later = Collisions([])
    later.add("a.b")
    assert later.find("a_b") == "a.b"


@given(
    broker_count=st.integers(1, 12),
    partition_count=st.integers(1, 60),
    racks=st.integers(0, 4),
    data=st.data(),
)
def test_any_spread_is_even_and_repeats_no_broker(
    broker_count: int, partition_count: int, racks: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, broker_count))
    members = brokers(broker_count, racks)
    load = {n: data.draw(st.integers(0, 3)) for n in members}
    existing = [(n,) for n, count in load.items() for _ in range(count)]
    placed = spread(placer(members, existing=existing), partition_count, factor)
    assert len(placed) == partition_count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(members)
        used = {members[n].rack for n in replicas}
        known = {broker.rack for broker in members.values()}
        if racks:
            assert len(used) == min(factor, len(known))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[n] for n in members) <= 1
    assert load[placed[0][0]] == min(load.values())


def test_followers_of_one_leader_vary() -> None:
    placed = spread(placer(brokers(5), existing=[]), 30, 2)
    followers = {replicas[1] for replicas in placed if replicas[0] == placed[0][0]}
    assert len(followers) > 1


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match=r"only 2 broker\(s\)"):
        spread(placer(brokers(2), existing=[]), 1, 3)
    with pytest.raises(InvalidReplicationFactor, match="All brokers"):
        spread(placer({}, existing=[]), 1, 1)


def test_a_plan_is_complete_and_deletion_keeps_what_cleanup_needs() -> None:
    topic_id = uuid4()
    planner = TopicPlanner(ClusterImage(brokers=brokers(3)), node=NodeConfig())
    new = NewTopic(name="a", partition_count=4, replication_factor=2)
    plan = planner.plan_new(new, topic_id=topic_id, now_ms=99)
    assert (plan.topic.topic_id, plan.topic.created_ms, plan.replication_factor) == (
        topic_id,
        99,
        2,
    )
    assert [partition.partition for partition in plan.partitions] == [0, 1, 2, 3]
    for partition in plan.partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.isr == partition.replicas
    tombstone = plan_deletion(plan.topic, now_ms=100)
    assert (tombstone.topic_id, tombstone.name, tombstone.partition_count) == (topic_id, "a", 4)


def test_the_clusters_own_topics_have_as_many_partitions_as_shards() -> None:
    node = NodeConfig(offsets_topic_num_partitions=11, num_partitions=2)
    assert default_topic(CONSUMER_OFFSETS_TOPIC, node, live_count=1).partition_count == 11
    assert default_topic("other", node, live_count=1).partition_count == -1


@given(
    st.dictionaries(st.sampled_from(["segment.bytes", "segment.ms"]), st.integers(14, 99)),
    st.lists(
        st.tuples(
            st.sampled_from(["segment.bytes", "segment.ms", "flush.ms"]),
            st.one_of(st.none(), st.integers(14, 99)),
        ),
        max_size=6,
    ),
)
def test_alterations_do_what_a_dict_does(
    before: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    current = {name: str(value) for name, value in before.items()}
    expected = dict(current)
    alterations = []
    for name, value in changes:
        if value is None:
            expected.pop(name, None)
            alterations.append(Alteration(name, AlterOperation.DELETE, None))
        else:
            expected[name] = str(value)
            alterations.append(Alteration(name, AlterOperation.SET, str(value)))
    assert alter_topic_configs(current, alterations, NodeConfig()) == expected


def test_every_problem_of_an_alteration_is_reported_at_once() -> None:
    alterations = [
        Alteration("no.such", AlterOperation.SET, "1"),
        Alteration("retention.ms", AlterOperation.SET, "x"),
    ]
    with pytest.raises(InvalidConfig) as raised:
        alter_topic_configs({}, alterations, NodeConfig())
    assert len(raised.value.problems) == 2


def test_nodes_have_a_default_of_how_far_timestamps_may_be_off() -> None:
    overrides = {
        "log.message.timestamp.after.max.ms": "9223372036854775807",
        "log.message.timestamp.before.max.ms": "5",
    }
    node = parse_config(NodeConfig, overrides)
    of_topic = topic_config({}, node)
    assert of_topic.message_timestamp_after_max_ms == 9223372036854775807
    assert of_topic.message_timestamp_before_max_ms == 5
    assert topic_config({"message.timestamp.before.max.ms": "6"}, node) != of_topic


def test_every_default_survives_being_written_out_and_read_back() -> None:
    defaults = TopicConfig()
    texts = {
        name: setting.format(getattr(defaults, setting.field))
        for name, setting in settings_of(TopicConfig).items()
    }
    assert parse_config(TopicConfig, texts) == defaults
