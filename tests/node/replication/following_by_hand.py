"""A node that follows broker 2, whose answers a test makes and applies turn by turn."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_session import FetcherSession
from tidelog_core.records.header import patch
from tidelog_core.replication.follower_state import Append, FollowerState, ReplicaFetch
from tidelog_node.follower.fetched_answer import FetchedAnswer
from tidelog_node.follower.followed import FollowedPartitions, PartitionAnswer, PartitionKey
from tidelog_node.follower.wire import FetchedPartition
from tidelog_node.replicas.replica import Replica

from tests.node.replication.led_node import LedNode, led_node
from tests.node.replication.test_leader_answers import fetchers_of
from tests.support.batches import batch_of
from tests.support.waiting import eventually_async

SESSION_ID = 7


class FollowingByHand:
    """The partitions that a node follows at broker 2, without its fetcher."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.told: list[tuple[Replica, Append]] = []  # of diskless partitions
        self.backoff_s = 0.0
        self.forgotten: list[int] = []  # partitions that the last fetch removed from the session
        self._session: FetcherSession[PartitionKey, ReplicaFetch] = FetcherSession(
            new_max=1_000, named_max=1_000, clock_s=time.monotonic
        )
        self.followed = FollowedPartitions(
            self._session,
            broker_id=1,
            catch_up=fetchers_of(node).catch_up,
            backoff_s=lambda: self.backoff_s,
            clock_ms=lambda: node.now_ms,
            on_possible=lambda: None,
            on_committed=self._on_committed,
        )
        replicas = node.replicas
        replicas.roles.following.subscribe(self._follow)
        replicas.trouble.subscribe(self.followed.on_trouble)
        replicas.exchanged.subscribe(self.followed.on_exchanged)
        for replica in replicas.replicas():
            self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        follower = None if replica.role is None else replica.role.follower
        if follower is not None and follower.leader_id == 2:
            self.followed.add(replica, follower)

    def _on_committed(self, replica: Replica, _: FollowerState, append: Append) -> None:
        self.told.append((replica, append))

    def fetch(self) -> dict[int, int]:
        """Send a fetch; return the offsets that it names, by partition."""
        self.followed.update_fetches()
        plan = self._session.next_fetch()
        assert plan is not None
        self.forgotten = [index for _, index in plan.forgotten]
        return {index: wanted.offset for (_, index), wanted in plan.named}

    def answer(
        self,
        records: Mapping[int, Sequence[bytes]],
        *,
        high_watermark: int,
        answered_ms: float = 0.0,
        diverging: tuple[int, int] | None = None,
    ) -> FetchedAnswer:
        """Return the answer to the last fetch: the batches of some partitions."""
        topic_id = self.node.replica().topic_id.bytes
        keys = [(topic_id, index) for index in records]
        assert self._session.on_answer(ErrorCode.none, SESSION_ID, keys)
        return FetchedAnswer(
            self.followed,
            [
                PartitionAnswer(
                    (topic_id, index),
                    self._session.last_asked((topic_id, index)),
                    FetchedPartition(
                        topic_id,
                        index,
                        0,
                        high_watermark,
                        0,
                        diverging,
                        memoryview(bytearray().join(batches)) if batches else None,
                    ),
                )
                for index, batches in records.items()
            ],
            answered_ms=answered_ms,
        )


@asynccontextmanager
async def following_by_hand(
    folder: Path, *, partition_count: int = 1, **configs: str
) -> AsyncIterator[FollowingByHand]:
    """A node that follows every partition of a topic at broker 2."""
    async with led_node(folder, NodeConfig()) as node:
        await node.create_topic(leader=2, partition_count=partition_count, **configs)
        replicas = [node.replica(index) for index in range(partition_count)]
        await eventually_async(
            lambda: all(replica.is_follower for replica in replicas), "the logs are open"
        )
        yield FollowingByHand(node)


def leaders_batches(count: int, *, leader_epoch: int = 0) -> list[bytes]:
    """Return batches of one record each, as a leader's log has them from its start."""
    found = []
    for offset in range(count):
        batch = bytearray(batch_of(b"%04d" % offset, timestamp_ms=1_000))
        patch(batch, 0, base_offset=offset, leader_epoch=leader_epoch)
        found.append(bytes(batch))
    return found


def bytes_of(replica: Replica) -> bytes:
    """Return the bytes of the replica's log."""
    return b"".join(path.read_bytes() for path in sorted(replica.log.directory.glob("*.log")))
