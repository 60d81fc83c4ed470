"""Three nodes and a partition's item that none of them can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.store import ANY_VERSION, Body, Write

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient


def values(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%06d" % number + b"x" * 94 for number in range(start, start + count)]


def overwrite(cluster: ReplicatedCluster, topic: str, body: Body) -> Body:
    """Write over the item of the topic's partition; return what it was."""

    async def write() -> Body:
        url = cluster.nodes[1].metadata_store
        assert url is not None
        store = open_metadata_store(url)
        try:
            image = await ClusterView(store).refresh()
            key = records.partition_key(image.topics[topic].topic_id, 0)
            item = await store.get(key)
            assert item is not None
            await store.commit([Write(key, body, ANY_VERSION)])
            return item.body
        finally:
            await store.close()

    return asyncio.run(write())


def seen_by(node: NodeProcess, topic: str) -> int:
    """Return the leader of the topic's partition as this node knows it."""
    admin = AdminClient({"bootstrap.servers": node.address})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[0].leader)


def produced(node: NodeProcess, topic: str) -> ErrorCode:
    with WireClient(node.port) as client:
        code: ErrorCode = client.produce(topic, batch_of(b"x")).error_code
        return code


def fetched(node: NodeProcess, topic: str) -> ErrorCode:
    with WireClient(node.port) as client:
        code: ErrorCode = client.fetch(topic, 0).error_code
        return code


def test_nobody_leads_what_nobody_can_read_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("spoiled", min_insync_replicas="2", unclean_leader_election_enable="true")
        cluster.create("sound", min_insync_replicas="2")
        acked = cluster.produce("spoiled", values(100))
        leader = cluster.node_leading("spoiled")
        body = overwrite(cluster, "spoiled", {"of": "tomorrow"})
        eventually(
            lambda: {seen_by(node, "spoiled") for node in cluster.running} == {-1},
            "every node has heard that nobody leads it",
        )
        # Metadata is answered from the image, which the replica follows a moment later.
        eventually(
            lambda: fetched(leader, "spoiled") is ErrorCode.not_leader_or_follower,
            "the leader has stepped down",
        )
        assert produced(leader, "spoiled") is ErrorCode.not_leader_or_follower
        # Neither a death nor an unclean election makes anybody lead it. The rest fails over.
        leader.kill()
        eventually(
            lambda: cluster.leader("sound") not in {-1, leader.broker_id}, "others take over"
        )
        assert len(cluster.produce("sound", values(100))) == 100
        assert cluster.leader("spoiled") == -1
        for node in cluster.running:
            assert produced(node, "spoiled") is ErrorCode.not_leader_or_follower
        leader.start()
        cluster.wait_isr("sound", {1, 2, 3})
        assert cluster.leader("spoiled") == -1
        overwrite(cluster, "spoiled", body)
        eventually(lambda: cluster.leader("spoiled") != -1, "it is led again")
        acked |= cluster.produce("spoiled", values(100, start=100))
        assert len(acked) == 200
        cluster.wait_isr("spoiled", {1, 2, 3})
        cluster.wait_same_logs("spoiled")
        assert cluster.consume("spoiled", 200) == acked
