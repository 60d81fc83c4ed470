"""Members that subscribe by a pattern get only the topics that their clients may describe."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidelog_core.metadata.coordination.consumer_groups import Partitions
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer

from tests.node.groups.consumer.test_consumer_group import SETTINGS, Driver, partitions, topics


class Sees:
    """A viewer of these topics; another object after each change of rights."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def sees(self, topic: str) -> bool:
        return topic in self.names


class Rights(Driver):
    """Members with a pattern, each with its own rights."""

    def __init__(self, **counts: int) -> None:
        super().__init__(**counts)
        self.settings = dataclasses.replace(SETTINGS, hides_topics=True)
        self.viewers: dict[str, Sees | None] = {}  # ``None``: a super user

    def beat(self, member: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        return super().beat(member, epoch, viewer=self.viewers[member], **fields)

    def enter_as(self, member: str, viewer: Sees | None, **fields: Any) -> HeartbeatAnswer:
        self.viewers[member] = viewer
        given = {"subscribed_topics": None, "subscribed_pattern": "p.*", **fields}
        return self.enter(member, **given)


def of(*names: str) -> Partitions:
    return frozenset[Any]().union(*(partitions(0, topic=name) for name in names))


def test_each_member_gets_what_it_may_describe() -> None:
    driver = Rights(p1=1, p2=1, p3=1, q=1)
    assert driver.enter_as("a", Sees("p1", "p2", "q")).assigned == of("p1", "p2")
    driver.enter_as("b", Sees("p3"))
    driver.settle("a", "b")
    assert (driver.assigned("a"), driver.assigned("b")) == (of("p1", "p2"), of("p3"))
    driver.enter_as("c", None)
    driver.settle("a", "b", "c")
    assert driver.assigned("a") <= of("p1", "p2")
    assert driver.assigned("b") <= of("p3")
    assert not driver.group.is_subscribed_to("q")
    assert driver.group.topics.keys() == {"p1", "p2", "p3"}


def test_a_name_needs_no_right_here() -> None:
    """It was checked before the heartbeat."""
    driver = Rights(p1=1, p2=1)
    answer = driver.enter_as("a", Sees(), subscribed_topics=("p2",), subscribed_pattern=None)
    assert answer.assigned == of("p2")


def test_a_change_of_rights_counts_at_the_next_heartbeat() -> None:
    driver = Rights(p1=1, p2=1)
    driver.enter_as("a", Sees("p1", "p2"))
    driver.enter_as("b", Sees("p1", "p2"))
    epoch = driver.settle("a", "b")
    (lost,) = {"p1", "p2"} - {name for name in ("p1", "p2") if driver.assigned("b") == of(name)}
    driver.viewers["a"] = Sees(*({"p1", "p2"} - {lost}))  # The group's topics stay the same.
    driver.beat("a", epoch)
    driver.settle("a", "b")
    assert driver.assigned("b") == of(lost)
    assert of(lost) & driver.assigned("a") == frozenset()
    driver.viewers["b"] = Sees()
    epoch = driver.settle("a", "b")
    assert driver.assigned("b") == frozenset()
    assert lost not in driver.group.topics
    driver.viewers["b"] = Sees(lost)
    driver.settle("a", "b")
    assert driver.assigned("b") == of(lost)


def test_a_change_of_rights_that_hides_nothing_begins_no_epoch() -> None:
    driver = Rights(p1=1, p2=1)
    driver.enter_as("a", Sees("p1"))
    epoch = driver.settle("a")
    driver.viewers["a"] = Sees("p1", "other")
    driver.beat("a", epoch)
    assert (driver.group.epoch, driver.step.must_store) == (epoch, False)
    driver.viewers["a"] = None
    driver.beat("a", epoch)
    assert driver.group.epoch == epoch + 1


def test_a_new_topic_comes_to_those_who_may_describe_it() -> None:
    driver = Rights(p1=1)
    driver.enter_as("a", Sees("p1"))
    driver.enter_as("b", Sees("p1", "p2"))
    driver.settle("a", "b")
    driver.topics = {**driver.topics, **topics(p2=1)}
    driver.settle("a", "b")
    assert of("p2") <= driver.assigned("b")


def test_a_new_coordinator_lets_members_keep_their_topics_until_it_knows_their_rights() -> None:
    driver = Rights(p1=1, p2=1, p3=1)
    driver.enter_as("a", Sees("p1", "p2"))
    driver.enter_as("b", Sees("p3"))
    epoch = driver.settle("a", "b")
    driver.move()
    driver.match()
    assert driver.group.topics.keys() == {"p1", "p2", "p3"}
    assert driver.group.is_subscribed_to("p3")
    for member in ("a", "b"):
        driver.beat(member, epoch)
        assert (driver.group.epoch, driver.step.must_store) == (epoch, False)
    driver.move()
    driver.enter_as("c", Sees("p1"))  # begins an epoch before the others are known
    driver.settle("a", "b", "c")
    assert driver.assigned("b") == of("p3")
    assert of("p2") <= driver.assigned("a")


def test_rights_that_were_lost_while_nobody_coordinated_the_group_count() -> None:
    driver = Rights(p1=1, p2=1)
    driver.enter_as("a", Sees("p1", "p2"))
    driver.enter_as("b", Sees("p1", "p2"))
    epoch = driver.settle("a", "b")
    driver.move()
    driver.viewers["a"] = Sees()
    driver.beat("a", epoch)
    driver.settle("a", "b")
    assert (driver.assigned("a"), driver.assigned("b")) == (frozenset(), of("p1", "p2"))


def test_a_static_member_that_returns_keeps_its_place() -> None:
    driver = Rights(p1=1, p2=1)
    driver.enter_as("a", Sees("p1"), instance_id="i")
    epoch = driver.settle("a")
    driver.beat("a", -2, instance_id="i")
    answer = driver.enter_as("c", driver.viewers["a"], instance_id="i")
    assert (answer.member_epoch, answer.assigned) == (epoch, of("p1"))
