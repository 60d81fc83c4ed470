"""A partition without a leader is not an unknown one."""

from __future__ import annotations

import uuid

from tidelog.asking_leaders import by_leader
from tidelog.cluster import Cluster
from tidelog.errors import LeaderNotAvailable, UnknownTopicOrPartition
from tidelog.metadata import PartitionInfo, TopicInfo
from tidelog.options import ClientOptions
from tidelog.wire.connection import Address
from tidelog_core.model import NO_LEADER, TopicPartition


async def test_partition_without_a_leader_is_told_from_one_that_is_not_there() -> None:
    cluster = Cluster(ClientOptions((Address("127.0.0.1", 1),)))
    partition = PartitionInfo(0, NO_LEADER, 3, (1, 2), ())
    cluster._topics["t"] = TopicInfo(
        "t", uuid.uuid4(), is_internal=False, partitions={0: partition}
    )
    led, failures = await by_leader(cluster, [TopicPartition("t", 0), TopicPartition("t", 1)])
    assert led == {}
    leaderless, unknown = failures
    assert isinstance(leaderless, LeaderNotAvailable)
    assert str(leaderless) == "t-0: it has no leader"
    assert leaderless.retriable
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert unknown.topic == "t"
