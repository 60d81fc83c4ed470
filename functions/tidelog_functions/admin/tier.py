"""Operations on the tier: its status, and the jobs that verify it and erase keys from it."""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from tidelog_core.config import topic_config
from tidelog_core.erasure.tier import find_in_tier
from tidelog_core.erasure.topic import erase_key
from tidelog_core.rewriting.partition_tier import PartitionTier
from tidelog_core.rewriting.targets import RewriteTarget, rewrite_targets
from tidelog_core.tier.status import tier_status
from tidelog_core.verification.checking import check_planned
from tidelog_core.verification.source import planned_by_metadata

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer
from tidelog_functions.admin.job_registry import Job, JobRegistry, Report, Work
from tidelog_functions.admin.problems import HttpProblem

LISTS_AT_ONCE_MAX = 16
RECEIPT_SIZE_BYTES_MAX = 1 << 20  # a larger one is in the bucket alone
PROBLEMS_MAX = 1_000  # in a job's result; the counts are of all
TIMEOUT_SECONDS = 60


async def describe_tier(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return how far each partition of a topic is tiered."""
    topic = await cluster.topic(call.parameters["topic"])
    config = topic_config(topic.configs, cluster.node_config())
    is_tiered = config.remote_storage_enable and not topic.is_internal
    partitions = cluster.view.image.partitions(topic.name)
    rows: list[dict[str, Any]] = []
    for at in range(0, len(partitions), LISTS_AT_ONCE_MAX):
        some = partitions[at : at + LISTS_AT_ONCE_MAX]
        lists = await asyncio.gather(*map(cluster.segments, some))
        rows += [
            asdict(tier_status(partition, metas, is_tiered=is_tiered))
            for partition, metas in zip(some, lists, strict=True)
        ]
    return HttpAnswer({"topic": topic.name, "partitions": rows})


async def start_verification(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Start a job that checks the tiered segments of some topics, or of all."""
    topics = list(call.body.get("topics", ()))
    for name in topics:
        await cluster.topic(name)
    settings = cluster.settings

    async def verify(report: Report) -> dict[str, Any]:
        async with planned_by_metadata(
            settings.metadata_url, settings.objects_url, topics
        ) as planned:
            found = await check_planned(planned, on_step=report.step)
        return {**found.document(problems_max=PROBLEMS_MAX), "notes": list(planned.notes)}

    return _accepted(cluster, "verification", verify)


async def start_erasure(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Start a job that erases a key from a topic, or with ``dry_run`` counts its records."""
    topic = await cluster.topic(call.body["topic"])
    key = _key(call.body["key_base64"])
    targets = rewrite_targets(
        cluster.view.image,
        topic.name,
        metadata=cluster.settings.metadata_url,
        objects=cluster.settings.objects_url,
    )
    seconds = call.body.get("timeout_seconds", TIMEOUT_SECONDS)
    work = _counting(targets, key) if call.body.get("dry_run") else _erasing(targets, key, seconds)
    return _accepted(cluster, "erasure", work)


async def describe_job(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a job, once it has more steps than the caller knows, or after a time."""
    after_step = call.parameters["after_step"]
    job = await _registry(cluster).wait(
        call.parameters["job_id"],
        after_step=after_step,
        seconds=call.parameters["wait_seconds"],
    )
    return HttpAnswer(job.document(after_step=after_step))


def _erasing(targets: list[RewriteTarget], key: bytes, seconds: int) -> Work:
    async def erase(report: Report) -> dict[str, Any]:
        async with _opened(targets) as tiers:
            receipt = await erase_key(
                tiers, key, erasure_id=uuid4(), wait_seconds=seconds, on_step=report.step
            )
        document = receipt.document()
        is_large = len(json.dumps(document)) > RECEIPT_SIZE_BYTES_MAX
        return {**receipt.summary(), "receipt": None if is_large else document}

    return erase


def _counting(targets: list[RewriteTarget], key: bytes) -> Work:
    async def count(report: Report) -> dict[str, Any]:
        rows = []
        async with _opened(targets) as tiers:
            for number, tier in enumerate(tiers, 1):
                report.step(f"searching partition {tier.partition} ({number} of {len(tiers)})")
                found = await find_in_tier(tier, key)
                rows.append(
                    {
                        "topic": tier.topic.name,
                        "partition": tier.partition,
                        "records": found.record_count,
                        "segments": found.holding_count,
                        "searched_segments": found.segment_count,
                    }
                )
        return {"found": rows}

    return count


@asynccontextmanager
async def _opened(targets: list[RewriteTarget]) -> AsyncIterator[list[PartitionTier]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(target.opened()) for target in targets]


def _accepted(cluster: AdminCluster, kind: str, work: Work) -> HttpAnswer:
    job: Job = _registry(cluster).start(kind, work)
    return HttpAnswer(job.document(after_step=0), status=202)


def _registry(cluster: AdminCluster) -> JobRegistry:
    if cluster.jobs is None:
        problem = HttpProblem(422, "This API runs no jobs.")
        problem.hint = "run `tidelog` with --metadata and --objects, where the stores are reached"
        raise problem
    return cluster.jobs


def _key(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpProblem(422, "key_base64 is not valid base64.") from None
