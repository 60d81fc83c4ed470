"""An object is read once in each zone, because one node there follows all that its leader leads."""

from __future__ import annotations

from pathlib import Path

from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, Partition, put
from tidelog_core.model import TopicPartition
from tidelog_core.replication.follower_state import Append
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_node.diskless.feed.chain_feeds import ChainFeeds
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory

from tests.node.diskless.chained_log import CLUSTER, TOPIC_ID, new_chain, replica_over
from tests.node.diskless.test_chain_feed import NoTier, WatchedStore
from tests.support.batches import batch
from tests.support.data_objects import build_data_object
from tests.support.log_building import open_log
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.placed_cluster import PlacedCluster
from tests.support.store_lender import StoreLender
from tests.support.waiting import eventually_async

LEADER, OBJECTS = 2, 5
HERE = 1  # what each node calls itself
RACKS: dict[int, str | None] = {2: "a", 7: "a", 3: "b", 4: "b", 5: "c", 6: "c"}


class Follower:
    """A node that follows some partitions of the leader, with its own way to the bucket."""

    def __init__(self, folder: Path, broker_id: int, store: WatchedStore) -> None:
        self.folder, self.broker_id, self.store = folder, broker_id, store
        self.replicas: list[Replica] = []

    async def start(self) -> None:
        metadata = MemoryMetadataStore()
        await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
        view = ClusterView(metadata)
        await view.refresh()
        node = node_context(metadata, view, broker_id=self.broker_id)
        history = TierHistory(store=metadata, indexes=NoTier(), view=view)  # type: ignore[arg-type]
        self.feeds = ChainFeeds(
            store=self.store,
            lender=StoreLender(self.store),
            read=self.store.get_range,
            cluster_id=CLUSTER,
            refill=LogRefill(node, self.store.get_range),
            catch_up=CatchUp(node, history=history, timeout_s=1.0),
            on_moved=lambda _: None,
        )

    def follow(self, partition: Partition) -> None:
        replica = replica_over(self.folder / str(partition.partition))
        replica.partition = TopicPartition("topic", partition.partition)
        replica.is_diskless = True
        assert replica.role is not None
        replica.role.on_partition(partition, replica.log, leads=False, rules=ReplicationRules())
        self.replicas.append(replica)

    async def read_up_to(self, end_offset: int) -> None:
        for replica in self.replicas:
            assert replica.role is not None
            assert replica.role.follower is not None
            self.feeds.note(replica, replica.role.follower, Append(end_offset, 0))
        await eventually_async(
            lambda: all(replica.log.high_watermark == end_offset for replica in self.replicas)
        )

    async def stop(self) -> None:
        await self.feeds.close()
        for replica in self.replicas:
            replica.log.close()


async def test_an_object_is_read_by_one_node_of_each_zone(tmp_path: Path) -> None:
    cluster = PlacedCluster(dict(RACKS))
    for _ in range(3):
        cluster.create(6, 3)
    led = [one for one in cluster.partitions if one.leader == LEADER]
    assert len(led) == 3
    # They are of three topics; their followers are what counts here.
    chain = new_chain(LEADER)
    bucket = WatchedStore()
    nodes = {b: Follower(tmp_path / str(b), b, WatchedStore()) for b in RACKS if b != LEADER}
    for node in nodes.values():
        node.store._objects = bucket._objects
        await node.start()
    source = open_log(tmp_path / "source")
    for number, one in enumerate(led):
        partition = Partition(
            topic_id=TOPIC_ID,
            partition=number,
            replicas=(LEADER, HERE),
            leader=LEADER,
            leader_epoch=3,
            isr=(LEADER,),
            wal=(EpochChain(3, chain, 0),),
            version=1,
        )
        for broker_id in one.replicas[1:]:
            nodes[broker_id].follow(partition)
    keys = []
    for sequence in range(OBJECTS):
        data = batch(1)
        source.append_as_leader(data, leader_epoch=3)
        slices = [WalSlice(TOPIC_ID, number, 3, bytes(data)) for number in range(len(led))]
        name = ObjectName(CLUSTER, chain, sequence, sequence, 0, 0)
        keys.append(wal_key(CLUSTER, chain, sequence))
        await bucket.put(keys[-1], build_data_object(name, slices).data)
        for node in nodes.values():
            await node.read_up_to(sequence + 1)
    for zone in ("b", "c"):
        of_zone = [nodes[b].store.gets for b in RACKS if RACKS[b] == zone]
        # The first ones are read to join; from then on each object is read once in the zone.
        for key in keys[2:]:
            assert sum(gets[key] for gets in of_zone) == 1
    for node in nodes.values():
        await node.stop()
    source.close()
