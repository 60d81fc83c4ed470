"""Share groups of librdkafka's share consumers, on real nodes that are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import ShareConsumer
from tidelog import Admin, GroupDescription

from tests.support.replicated_cluster import replicated_cluster

CONFIG = {
    "group.share.heartbeat.interval.ms": "300",
    "group.share.session.timeout.ms": "20000",
    "offsets.topic.num.partitions": "4",
}
SETTLE_SECONDS_MAX = 30


def describe(bootstrap: str) -> GroupDescription:
    with Admin(bootstrap).sync() as admin:
        return admin.describe_groups(["g"])["g"]


def until(
    members: Sequence[ShareConsumer], bootstrap: str, is_right: Callable[[GroupDescription], bool]
) -> GroupDescription:
    """Have the members read until the group is as it should be; return it."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        for member in members:
            member.poll(0.1)
        group = describe(bootstrap)
        if is_right(group):
            return group
        assert time.monotonic() < deadline, group


def is_shared_by_two(group: GroupDescription) -> bool:
    partitions = [p for member in group.members for p in member.assignment]
    epochs = {member.epoch for member in group.members}
    return len(group.members) == 2 and len(set(partitions)) == 3 and epochs == {group.epoch}


@pytest.mark.slow  # asked of consumer groups by default
def test_members_notice_nothing_of_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        cluster.create("t", partitions=3)
        settings = {"bootstrap.servers": cluster.addresses, "group.id": "g", "log_level": 0}
        members = [ShareConsumer(settings) for _ in range(2)]
        try:
            for member in members:
                member.subscribe(["t"])
            before = until(members, cluster.addresses, is_shared_by_two)
            cluster.nodes[before.coordinator].kill()
            left = cluster.running[0].address
            until(members, left, lambda group: group.coordinator != before.coordinator)
            for _ in range(20):  # many heartbeats
                for member in members:
                    member.poll(0.1)
            after = describe(left)
            assert (after.state, after.epoch) == ("Stable", before.epoch)
            assert after.members == before.members
        finally:
            for member in members:
                member.close()
        assert describe(left).members == ()
