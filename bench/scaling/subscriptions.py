"""A dimension of topics that one group subscribes to, with its member's commits."""

from __future__ import annotations

import time
from typing import Any

from kio.schema.consumer_group_heartbeat.v1 import request as heartbeat
from tidelog_core.wire_messages import build

from bench.scaling.cluster import CALL_SECONDS_MAX, Cluster
from bench.scaling.workload import (
    COORDINATOR_LATE,
    Latencies,
    commit_frame,
    repeat,
    require_committed,
)
from tests.support.wire_client import WireClient, milliseconds

SUBSCRIBER, MEMBER = "subscriber", "member-of-subscriber"
_REBALANCE_MS = 300_000
_SENT_AWAY = (25, 110)  # unknown member, fenced epoch: it joins again
_RETRY_SECONDS = 0.05


class SubscribedTopics:
    """Topics of one partition that the one member of a group (KIP-848) subscribes to by name."""

    name = "commit of one offset by the member"

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._epoch = 0
        self._assigned: tuple[Any, ...] = ()

    def grow(self, cluster: Cluster, count: int) -> None:
        """Create the missing topics, and have the member subscribe until it has all."""
        added = [f"subscribed-{number:06}" for number in range(len(self._names), count)]
        cluster.create_topics(dict.fromkeys(added, 1))
        cluster.await_coordinator(SUBSCRIBER)
        self._names += tuple(added)
        with cluster.client() as client:
            self._settle(client)

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Repeat a commit, with one in flight; a first heartbeat renews the session."""
        topic = self._names[0]
        with cluster.client() as client:
            self._settle(client)
            request = commit_frame(SUBSCRIBER, topic, member_id=MEMBER, epoch=self._epoch)
            return repeat(lambda: require_committed(client, request, topic), count)

    def close(self) -> None:
        """Nothing to release: the member's session expires."""

    def _settle(self, client: WireClient) -> None:
        """Send heartbeats until the member has every topic. Raises ``TimeoutError``."""
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while not self._beat(client) or len(self._assigned) < len(self._names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the member has {len(self._assigned)} of {len(self._names)}")
            time.sleep(_RETRY_SECONDS)

    def _beat(self, client: WireClient) -> bool:
        """Send a full heartbeat; return whether the answer had no changes."""
        answer = client.call(
            build(
                heartbeat.ConsumerGroupHeartbeatRequest,
                group_id=SUBSCRIBER,
                member_id=MEMBER,
                member_epoch=self._epoch,
                rebalance_timeout=milliseconds(_REBALANCE_MS),
                subscribed_topic_names=self._names,
                topic_partitions=tuple(
                    build(
                        heartbeat.TopicPartitions,
                        topic_id=topic.topic_id,
                        partitions=topic.partitions,
                    )
                    for topic in self._assigned
                ),
            )
        )
        if answer.error_code in _SENT_AWAY:
            self._epoch, self._assigned = 0, ()
            return False
        if answer.error_code in COORDINATOR_LATE:
            return False
        if answer.error_code:
            code, message = answer.error_code, answer.error_message
            raise RuntimeError(f"a heartbeat was answered with error code {code}: {message}")
        assigned = (
            self._assigned if answer.assignment is None else answer.assignment.topic_partitions
        )
        is_news = (self._epoch, self._assigned) != (answer.member_epoch, assigned)
        self._epoch, self._assigned = answer.member_epoch, assigned
        return not is_news
