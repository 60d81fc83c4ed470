"""``handle`` finds objects without metadata and metadata without objects.

It removes objects that no segment item names once scrubs have seen them in that state for
long enough (``settings``; ``tidelog_core.retention.orphans`` defines an orphan), manifests
of topics deleted long ago, and obsolete objects that record log starts and deletions. It
reports, but never repairs, segments whose objects are missing or have another size, and
objects at offsets that the metadata does not know. An object named by an item is never
deleted here, nor one whose key Tidelog does not write.

Staging leftovers are handled by the stores: a folder store removes unlocked ones of
``.staging/`` when it is opened, as here; in S3 a lifecycle rule does.

It is called by a schedule, or by hand with ``{"dry_run": true}``. A call near its time
limit stores its position, and the next one continues there. A cluster without registered
nodes is left alone: its metadata may be about to be restored.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable

from tidelog_core.clock import wall_clock_ms
from tidelog_core.metadata import records
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore

from tidelog_functions.cluster_reader import (
    ClusterReader,
    problems_of,
    read_progress,
    write_progress,
)
from tidelog_functions.costs import counted_stores
from tidelog_functions.events import Scheduled, UnknownEvent, parse_event
from tidelog_functions.invocation import (
    Context,
    FunctionSettings,
    PartitionsFailed,
    TimeLimit,
    parse_function_settings,
)
from tidelog_functions.scrub.scrub_run import ScrubRun
from tidelog_functions.scrub.settings import ScrubSettings, parse_scrub_settings
from tidelog_functions.scrub.sweep import Report, Sweep

logger = logging.getLogger(__name__)

FUNCTION = "scrub"
DRY_RUN = "dry_run"


def handle(event: object, context: Context) -> dict[str, object]:
    """Scrub the bucket; return the findings, as JSON.

    Raises ``UnknownEvent``, ``InvalidConfig``, ``PartitionsFailed`` and store errors that
    prevent any work.
    """
    is_dry_run = _wants_dry_run(event)
    settings = parse_function_settings(os.environ)
    scrub_settings = parse_scrub_settings(os.environ)
    if is_dry_run:
        scrub_settings = dataclasses.replace(scrub_settings, is_dry_run=True)
    return asyncio.run(_run(settings, scrub_settings, TimeLimit(context)))


async def _run(
    settings: FunctionSettings, scrub_settings: ScrubSettings, limit: TimeLimit
) -> dict[str, object]:
    async with counted_stores(settings, FUNCTION) as (store, objects):
        reader = ClusterReader(store, settings.node_config)
        report = await scrub(
            store,
            objects,
            reader,
            settings=scrub_settings,
            clock_ms=wall_clock_ms,
            limit=limit,
        )
    problems = problems_of(report.failed.items())
    summary = dataclasses.asdict(dataclasses.replace(report, failed={})) | {"failed": problems}
    logger.info("bucket scrubbed", extra={"summary": summary})
    if problems:
        raise PartitionsFailed(problems)
    return summary


async def scrub(
    store: MetadataStore,
    objects: ObjectStore,
    reader: ClusterReader,
    *,
    settings: ScrubSettings,
    clock_ms: Callable[[], int],
    limit: TimeLimit,
) -> Report:
    """Continue the sweep where the last one stopped.

    A dry run starts at the beginning and stores nothing.
    """
    cluster_id = await reader.cluster_id()
    if cluster_id is None or not await store.list(records.BROKER_COLLECTION):
        logger.info("no node is registered, the bucket is left alone")
        return Report(settings.is_dry_run)
    before = "" if settings.is_dry_run else await read_progress(store, FUNCTION)
    run = ScrubRun(
        store=store,
        objects=objects,
        cluster_id=cluster_id,
        settings=settings,
        clock_ms=clock_ms,
        limit=limit,
    )
    report = await Sweep(run, await reader.topics()).run(resumes_after=before)
    if report.resumes_after != before and not settings.is_dry_run:
        await write_progress(store, FUNCTION, report.resumes_after)
    return report


def _wants_dry_run(event: object) -> bool:
    if isinstance(event, dict) and event.keys() <= {DRY_RUN}:
        fields = event
    else:
        found = parse_event(event)
        if len(found) != 1 or not isinstance(found[0], Scheduled):
            raise UnknownEvent("call the scrub by a schedule, or with only the field dry_run")
        fields = dict(found[0].detail)
    is_dry_run = fields.get(DRY_RUN, False)
    if not isinstance(is_dry_run, bool):
        raise UnknownEvent(f"{DRY_RUN} must be true or false, not {is_dry_run!r:.80}")
    return is_dry_run
