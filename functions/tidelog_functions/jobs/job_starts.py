"""Decides whether to start a job, and claims the start in the metadata store.

Several invocations may find the same work at the same time, and a run that was just
started may not be listed yet. So an invocation first writes a claim, on the condition that
no other has: only the one whose write succeeds continues. For ``GRACE_MS`` afterwards no
other starts a run; by then the run is listed. A claim without a run (its holder crashed)
expires after that time.

The token is EMR's client token: a repeated request starts only one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.records import JobStart, job_start_key, put
from tidelog_core.metadata.store import ABSENT, MetadataStore

GRACE_MS = 300_000  # longer than an invocation takes, with the retries of its requests
RELEASED_MS = 0
# With more topics the job gets no names: then it checks all compacted topics.
TOPICS_NAMED_MAX = 50


@dataclass(frozen=True, slots=True)
class DuePartition:
    """A partition whose tier is due for compaction."""

    topic: str
    partition: int
    dirty_bytes: int
    dirty_ratio: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to start a job; ``reason`` is for the log."""

    is_start: bool
    reason: str
    topics: tuple[str, ...] = ()  # empty: all


def decide(
    due: Sequence[DuePartition],
    runs_under_way: Sequence[str],
    last: JobStart | None,
    *,
    now_ms: int,
) -> Decision:
    """Return whether to start a job now. No I/O."""
    if not due:
        return Decision(False, "nothing is due")
    if runs_under_way:
        return Decision(False, f"run {runs_under_way[0]} is under way")
    if last is not None and 0 <= now_ms - last.claimed_ms < GRACE_MS:
        return Decision(False, "another invocation is starting a run")
    topics = tuple(sorted({one.topic for one in due}))
    named = topics if len(topics) <= TOPICS_NAMED_MAX else ()
    return Decision(True, f"{len(due)} partitions are due", named)


async def last_start(store: MetadataStore, job: str) -> JobStart | None:
    """Return the last claim on starting the job."""
    item = await store.get(job_start_key(job))
    return None if item is None else JobStart.from_item(item)


async def claim_start(
    store: MetadataStore, job: str, last: JobStart | None, *, now_ms: int
) -> JobStart | None:
    """Return the claim, or ``None`` if another invocation came first."""
    version = ABSENT if last is None else last.version
    claim = JobStart(job=job, token=str(uuid4()), claimed_ms=now_ms, version=version)
    try:
        await store.commit([put(claim, is_logged=False)])
    except VersionConflict:
        return None
    return dataclasses.replace(claim, version=version + 1)


async def release_start(store: MetadataStore, claim: JobStart) -> None:
    """Release the claim because no run was started: others may try immediately."""
    released = dataclasses.replace(claim, claimed_ms=RELEASED_MS)
    # After a conflict the claim had expired, and another invocation has it.
    with contextlib.suppress(VersionConflict):
        await store.commit([put(released, is_logged=False)])
