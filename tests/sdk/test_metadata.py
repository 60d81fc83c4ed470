"""How news of topics are merged: what is newer stays, whoever says it."""

from __future__ import annotations

import uuid
from dataclasses import replace

from tidelog.metadata import PartitionInfo, TopicInfo, merge, with_leader

TOPIC_ID = uuid.UUID(int=7)


def a_topic(**epochs: int) -> TopicInfo:
    """Return a topic by the leader epochs of its partitions, ``p0=3``; node 10 + epoch leads."""
    partitions = {
        int(name[1:]): PartitionInfo(int(name[1:]), 10 + epoch, epoch, (1, 2), (1,))
        for name, epoch in epochs.items()
    }
    return TopicInfo("t", TOPIC_ID, False, partitions)


def test_metadata_of_a_node_that_is_behind_does_not_undo_a_newer_leader() -> None:
    assert merge(a_topic(p0=5, p1=5), a_topic(p0=4, p1=6)) == a_topic(p0=5, p1=6)


def test_metadata_of_a_topic_made_anew_replaces_the_old_one() -> None:
    fresh = replace(a_topic(p0=0), topic_id=uuid.UUID(int=8))
    assert merge(a_topic(p0=5), fresh) == fresh


def test_a_leader_named_by_another_answer_counts_if_its_epoch_is_newer() -> None:
    known = a_topic(p0=5, p1=5)
    led = with_leader(known, 1, leader=3, leader_epoch=6)
    assert led.partitions == {
        0: known.partitions[0],
        1: PartitionInfo(1, 3, 6, (1, 2), (1,)),
    }
    assert with_leader(led, 1, leader=2, leader_epoch=6) is led
    assert with_leader(led, 9, leader=2, leader_epoch=6) is led
