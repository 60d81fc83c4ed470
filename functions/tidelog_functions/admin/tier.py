"""Operations on the tier: its status. What takes long is a job (``jobs``)."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from tidelog_core.batched import batched
from tidelog_core.config import topic_config
from tidelog_core.tier.status import tier_status

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer

LISTS_AT_ONCE_MAX = 16


async def describe_tier(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return how far each partition of a topic is tiered."""
    topic = await cluster.topic(call.parameters["topic"])
    config = topic_config(topic.configs, cluster.node_config())
    is_tiered = config.remote_storage_enable and not topic.is_internal
    partitions = cluster.view.image.partitions(topic.name)
    rows: list[dict[str, Any]] = []
    for some in batched(partitions, LISTS_AT_ONCE_MAX):
        lists = await asyncio.gather(*map(cluster.segments, some))
        rows += [
            asdict(tier_status(partition, metas, is_tiered=is_tiered))
            for partition, metas in zip(some, lists, strict=True)
        ]
    return HttpAnswer({"topic": topic.name, "partitions": rows})
