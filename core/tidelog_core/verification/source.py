"""Opens the stores of a verification, and plans its checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from tidelog_core.errors import UnknownTopicOrPartition
from tidelog_core.metadata.stored_cluster import (
    describe_unreadable,
    opened_cluster,
    select_topics,
)
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.survey import (
    OnRead,
    find_cluster,
    list_clusters,
    read_count,
    survey,
)
from tidelog_core.tier.bucket import ClusterObjects
from tidelog_core.verification.plan import BucketPlan, MetadataPlan
from tidelog_core.verification.schema_check import check_schemas
from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.tail_check import ChainsPlan, ReadTieredEnd
from tidelog_core.verification.verification import PartitionPlan, Truth

ShowReading = Callable[[int], AbstractContextManager[OnRead]]
"""Given how many objects will be read, shows how many have been while the block runs."""


@contextmanager
def show_nothing(object_count: int) -> Iterator[OnRead]:
    """Show no progress."""
    del object_count
    yield lambda _: None


@dataclass(frozen=True, slots=True)
class Planned:
    """The checks to make, with the open stores."""

    cluster_id: str
    objects: ObjectStore
    truth: Truth
    partitions: Sequence[PartitionPlan]
    strays: Sequence[Problem]  # found already, of no segment that is checked
    configs: Mapping[str, Mapping[str, str]]  # by topic: the settings that it overrides
    chains: ChainsPlan  # of diskless topics
    read_tiered_end: ReadTieredEnd
    notes: Sequence[str]  # sentences for the operator on unchecked or partly checked content


@asynccontextmanager
async def planned_by_metadata(
    metadata_url: str, objects_url: str, topics: Sequence[str]
) -> AsyncIterator[Planned]:
    """Plan by the metadata store; all topics if none is named.

    Raises ``ClusterNotFound``, ``UnknownTopicOrPartition``.
    """
    async with opened_object_store(objects_url) as objects:
        async with opened_cluster(metadata_url) as (_, image):
            cluster_id = image.cluster_id
        # Listed before the metadata is read, see MetadataPlan.
        clusters, _ = await list_clusters(objects, cluster_id)
        async with opened_cluster(metadata_url) as (store, image):
            plan = MetadataPlan(store, image, objects)
            partitions = await plan.partitions(select_topics(image, topics))
            cluster = clusters.get(cluster_id, ClusterObjects(cluster_id))
            strays = await plan.strays(cluster, is_all=not topics)
            if not topics:
                strays += await check_schemas(objects, cluster_id, store)
            yield Planned(
                cluster_id=cluster_id,
                objects=objects,
                truth=plan,
                partitions=partitions,
                strays=strays,
                configs={name: topic.configs for name, topic in image.topics.items()},
                chains=plan.chains(cluster),
                read_tiered_end=plan.tiered_end,
                notes=describe_unreadable(image),
            )


@asynccontextmanager
async def planned_by_bucket(
    url: str,
    topics: Sequence[str],
    cluster_id: str | None,
    *,
    show_reading: ShowReading = show_nothing,
) -> AsyncIterator[Planned]:
    """Plan by the bucket alone.

    Raises ``ClusterNotFound``, ``UnknownTopicOrPartition``.
    """
    async with opened_object_store(url) as objects:
        cluster, notes = await find_cluster(objects, url, cluster_id)
        with show_reading(read_count(cluster)) as on_read:
            plan = BucketPlan(await survey(objects, cluster, on_read=on_read), objects)
        for name in topics:
            if name not in plan.topics:
                raise UnknownTopicOrPartition.of_topic(name, plan.topics)
        if not topics:
            plan.problems += await check_schemas(objects, cluster.cluster_id)
        yield Planned(
            cluster_id=cluster.cluster_id,
            objects=objects,
            truth=plan,
            partitions=plan.partitions(topics or plan.topics),
            # Whole only now: planning partitions finds problems of their topics.
            strays=plan.problems,
            configs=plan.configs,
            chains=plan.chains(cluster, topics or plan.topics),
            read_tiered_end=plan.tiered_end,
            notes=notes,
        )
