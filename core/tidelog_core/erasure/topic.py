"""Erases a key's records from all of a topic.

1. a request for each partition      the leader adds an end offset; every replica evicts its
                                     local records below that, or, without tiering, rewrites
                                     them (``requests``)
2. the tier is rewritten             ``tier``; with tiering, it has all records below the
                                     offset by then
3. the old objects are deleted       file.delete.delay.ms later
4. the receipt is put into the bucket, and completed requests are removed

After an interruption the requests stay: a replica that is down carries them out when it starts.
Running the erasure again does the remaining steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.erasure.requests import (
    ReplicaProgress,
    end_eviction,
    end_rewrite,
    eviction_progress,
    request_eviction,
    request_rewrite,
    rewrite_progress,
)
from tidelog_core.erasure.tier import TierErasure, delete_replaced, erase_from_tier
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.store import KeyRange
from tidelog_core.rewriting.partition_tier import PartitionTier
from tidelog_core.rewriting.swap import PartitionClaimed
from tidelog_core.tier.keys import erasure_receipt_key
from tidelog_core.tier.lifecycle import read_segments

T = TypeVar("T")

PROBLEMS_TOLD_MAX = 3  # in one sentence
POLL_SECONDS = 0.5  # between two readings of the replicas' progress

Sleep = Callable[[float], Awaitable[None]]
OnStep = Callable[[str], None]
"""Gets a sentence when a step begins, or waits for something else."""


def _ignore(_sentence: str) -> None:
    pass


async def erase_key(
    tiers: Sequence[PartitionTier],
    key: bytes,
    *,
    erasure_id: UUID,
    wait_seconds: float,
    sleep: Sleep = asyncio.sleep,
    on_step: OnStep = _ignore,
) -> ErasureReceipt:
    """Erase the key's records from these partitions of one topic.

    Waits at most ``wait_seconds`` for replicas, the same again for each partition that another
    process is rewriting, and then until replaced objects may be deleted.
    An error of one partition is noted in the receipt and does not stop the others. Raises the
    errors of the stores if the receipt cannot be put.
    """
    first = tiers[0]
    requested_ms = first.clock_ms()
    key_sha256 = hashlib.sha256(key).hexdigest()
    for tier in tiers:
        await _request(tier, key_sha256)
    waited, told = 0.0, set[str]()
    while waited < wait_seconds and (waiting_for := await _problems(tiers, key_sha256)):
        if not waiting_for <= told:
            on_step(f"waiting: {_in_short(sorted(waiting_for))}")
        told = waiting_for
        await sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    found = []
    for number, tier in enumerate(tiers, 1):
        on_step(f"searching the tier of {_name(tier)} ({number} of {len(tiers)})")
        found.append(await _erase_partition(tier, key, wait_seconds, sleep, on_step))
    receipt = ErasureReceipt(
        erasure_id=erasure_id,
        topic=first.topic.name,
        topic_id=first.topic.topic_id,
        key_sha256=key_sha256,
        requested_ms=requested_ms,
        ended_ms=first.clock_ms(),
        partitions=tuple(found),
    )
    data = json.dumps(receipt.document(), indent=2).encode() + b"\n"
    where = erasure_receipt_key(
        first.cluster_id, first.topic.name, first.topic.topic_id, erasure_id
    )
    await first.objects.replace(where, data)
    for tier, one in zip(tiers, found, strict=True):
        if not one.problems:
            await _end_request(tier, key_sha256)
    return receipt


def _name(tier: PartitionTier) -> str:
    return f"{tier.topic.name}-{tier.partition}"


async def _problems(tiers: Sequence[PartitionTier], key_sha256: str) -> set[str]:
    found: set[str] = set()
    for tier in tiers:
        progress = await _progress(tier, key_sha256)
        found.update(f"{_name(tier)}: {problem}" for problem in progress.problems)
    return found


def _in_short(problems: Sequence[str]) -> str:
    more = len(problems) - PROBLEMS_TOLD_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*problems[:PROBLEMS_TOLD_MAX], *rest])


async def _request(tier: PartitionTier, key_sha256: str) -> None:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        await request_eviction(*where)
    else:
        await request_rewrite(*where, key_sha256)


async def _progress(tier: PartitionTier, key_sha256: str) -> ReplicaProgress:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        return await eviction_progress(*where)
    return await rewrite_progress(*where, key_sha256)


async def _end_request(tier: PartitionTier, key_sha256: str) -> None:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        await end_eviction(*where)
    else:
        await end_rewrite(*where, key_sha256)


async def _erase_partition(
    tier: PartitionTier, key: bytes, wait_seconds: float, sleep: Sleep, on_step: OnStep
) -> PartitionErasure:
    progress = await _progress(tier, hashlib.sha256(key).hexdigest())
    problems = progress.problems
    erased: TierErasure | None = None
    try:
        if tier.config.remote_storage_enable or await _has_segments(tier):
            erased = await _when_free(lambda: erase_from_tier(tier, key), wait_seconds, sleep)
        if erased is not None and erased.erased:
            delay_s = tier.config.file_delete_delay_ms / 1000
            on_step(
                f"{_name(tier)}: {len(erased.erased)} segments replaced, the old ones are deleted "
                f"in {delay_s:g} s (file.delete.delay.ms)"
            )
        await _when_free(lambda: delete_replaced(tier, sleep=sleep), wait_seconds, sleep)
    except TidelogError as error:
        problems = (*problems, f"the tier is not rewritten: {type(error).__name__}: {error}")
    return PartitionErasure(
        partition=tier.partition,
        up_to=progress.up_to,
        tier=erased,
        replicas=progress.replicas,
        problems=problems,
    )


async def _has_segments(tier: PartitionTier) -> bool:
    one = KeyRange(limit=1)
    return bool(await read_segments(tier.store, tier.topic.topic_id, tier.partition, keys=one))


async def _when_free(work: Callable[[], Awaitable[T]], wait_seconds: float, sleep: Sleep) -> T:
    """Do the work once the claim is free. Raises ``PartitionClaimed`` after the wait."""
    waited = 0.0
    while True:
        try:
            return await work()
        except PartitionClaimed:
            if waited >= wait_seconds:
                raise
        await sleep(POLL_SECONDS)
        waited += POLL_SECONDS
