"""Where a verification begins: the stores opened, and what is to be checked in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.survey import list_clusters, read_count, survey
from tidelog_core.tier.bucket import ClusterObjects

from tidelog.cli.bucket import chosen_cluster
from tidelog.cli.failures import CommandFailed
from tidelog.cli.output import progress
from tidelog.cli.segment_check import Problem
from tidelog.cli.stores import StoreLocations, opened_metadata, opened_objects, select_topics
from tidelog.cli.verification import PartitionPlan, Truth
from tidelog.cli.verification_plan import BucketPlan, MetadataPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be checked, with the open stores to check it in."""

    cluster_id: str
    objects: ObjectStore
    truth: Truth
    partitions: Sequence[PartitionPlan]
    strays: Sequence[Problem]  # what was found already, of no one segment that is checked
    configs: Mapping[str, Mapping[str, str]]  # by topic: the settings that it overrides


@asynccontextmanager
async def planned_by_metadata(
    locations: StoreLocations, topics: list[str]
) -> AsyncIterator[Planned]:
    """Plan by what the metadata store says; all topics where none is named.

    Raises ``CommandFailed``.
    """
    assert locations.objects is not None
    async with opened_objects(locations.objects) as objects:
        async with opened_metadata(locations.metadata) as (_, image):
            cluster_id = image.cluster_id
        # Listed before the metadata is read, see MetadataPlan.
        clusters, _ = await list_clusters(objects, cluster_id)
        async with opened_metadata(locations.metadata) as (store, image):
            plan = MetadataPlan(store, image, objects)
            partitions = await plan.partitions(select_topics(image, topics))
            cluster = clusters.get(cluster_id, ClusterObjects(cluster_id))
            strays = await plan.strays(cluster, is_all=not topics)
            configs = {name: topic.configs for name, topic in image.topics.items()}
            yield Planned(cluster_id, objects, plan, partitions, strays, configs)


@asynccontextmanager
async def planned_by_bucket(
    url: str, topics: list[str], cluster_id: str | None
) -> AsyncIterator[Planned]:
    """Plan by what the bucket alone says. Raises ``CommandFailed``."""
    async with opened_objects(url) as objects:
        cluster = await chosen_cluster(objects, url, cluster_id)
        with progress("reading", total=read_count(cluster), unit="objects") as advance:
            plan = BucketPlan(await survey(objects, cluster, on_read=advance), objects)
        for name in topics:
            if name not in plan.topics:
                raise CommandFailed(f"there is no topic {name!r} in {url}")
        partitions = plan.partitions(topics or plan.topics)
        yield Planned(cluster.cluster_id, objects, plan, partitions, plan.problems, plan.configs)
