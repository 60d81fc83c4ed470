"""The tiers of a topic's partitions, as a run of a job opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_core.clock import wall_clock_ms
from tidelog_core.metadata.stored_cluster import opened_cluster
from tidelog_core.tier_compaction.partition_tier import PartitionTier
from tidelog_core.tier_compaction.targets import rewrite_targets

from tidelog_functions.admin_jobs.run import Run


@asynccontextmanager
async def opened_tiers(run: Run, topic: str) -> AsyncIterator[list[PartitionTier]]:
    """Open the tiers of the topic's partitions, in the stores of the run."""
    metadata, objects = run.settings.metadata_url, run.settings.objects_url
    async with opened_cluster(metadata) as (store, image):
        targets = rewrite_targets(
            image,
            topic,
            metadata=metadata,
            objects=objects,
            static_config=run.settings.node_config,
        )
        yield [
            PartitionTier(
                store=store,
                objects=run.objects,
                cluster_id=target.cluster_id,
                topic=target.topic,
                partition=target.partition,
                config=target.config,
                key_filter_records_max=target.key_filter_records_max,
                clock_ms=wall_clock_ms,
            )
            for target in targets
        ]
