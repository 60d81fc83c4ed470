"""Jobs in the metadata store. Every write is conditional on the item as it was read."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from uuid import UUID

from tidelog_core.errors import (
    CorruptItem,
    ErrorCode,
    Interrupted,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.admin_jobs import (
    ADMIN_JOB_COLLECTION,
    AdminJob,
    JobState,
    admin_job_key,
)
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import Item, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import update

from tidelog_functions.admin_jobs import states

logger = logging.getLogger(__name__)

UNENDED_MAX = 20
CALLER_UNENDED_MAX = 5  # of one caller, so that the others have room too
JOBS_MAX = 100  # the oldest that have ended are removed first
RENEWALS_MAX = 20  # attempts: the API and a run write the item at the same time


class JobNotFound(TidelogError):
    """There is no such job, or it was forgotten."""

    code = ErrorCode.resource_not_found

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}; jobs are kept for a week after their end")


class TooManyJobs(TidelogError):
    """As many jobs as may be are waiting or running."""

    code = ErrorCode.throttling_quota_exceeded
    hint = "try again when one has ended, or cancel one: `tidelog admin-job list`"

    def __init__(self, owner: str, count: int) -> None:
        super().__init__(f"{owner} has {count} jobs that wait or run, and may have no more")


class HoldLost(Interrupted):
    """Another run has the job, or it has ended: this run may do nothing more for it."""

    code = ErrorCode.fenced_leader_epoch
    hint = ""


class JobStore:
    """The jobs of one cluster."""

    def __init__(self, store: MetadataStore, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self.clock_ms = clock_ms

    async def add(self, job: AdminJob) -> AdminJob:
        """Store a new job, or return the one that has its id already.

        Raises ``TooManyJobs``.
        """
        jobs = await self.list()
        found = [one for one in jobs if one.job_id == job.job_id]
        if found:
            return found[0]
        unended = [one.caller for one in jobs if not one.has_ended]
        if (own := unended.count(job.caller)) >= CALLER_UNENDED_MAX:
            raise TooManyJobs(job.caller, own)
        if len(unended) >= UNENDED_MAX:
            raise TooManyJobs("the cluster", len(unended))
        ended = sorted((one for one in jobs if one.has_ended), key=lambda one: one.due_ms)
        for old in ended[: max(0, len(jobs) - JOBS_MAX + 1)]:
            await self.remove(old)
        try:
            await self._store.commit([put(job, is_logged=False)])
        except VersionConflict:  # The same request, sent twice at once.
            return await self.get(job.job_id)
        return dataclasses.replace(job, version=job.version + 1)

    async def get(self, job_id: UUID) -> AdminJob:
        """Return the job. Raises ``JobNotFound``."""
        item = await self._store.get(admin_job_key(job_id))
        if item is None:
            raise JobNotFound(str(job_id))
        return AdminJob.from_item(item)

    async def list(self) -> list[AdminJob]:
        """Return all jobs, the newest first, without those that this version cannot read."""
        items = await self._store.list(ADMIN_JOB_COLLECTION, keys=KeyRange(limit=2 * JOBS_MAX))
        jobs = []
        for item in items:
            try:
                jobs.append(AdminJob.from_item(item))
            except CorruptItem as error:  # It does not hold up the others.
                logger.warning("job not readable, left out", extra={"reason": str(error)})
        return sorted(jobs, key=lambda job: (-job.created_ms, job.job_id))

    async def remove(self, job: AdminJob) -> None:
        """Remove the job, unless it has changed."""
        try:
            await self._store.commit([delete(job, is_logged=False)])
        except VersionConflict:
            return

    async def change(
        self, job_id: UUID, decide: Callable[[AdminJob], AdminJob | None]
    ) -> AdminJob | None:
        """Return the job as decided, once that is stored; ``None`` if nothing was to change.

        Raises ``JobNotFound``, and what ``decide`` raises.
        """

        def write(item: Item | None) -> tuple[AdminJob | None, Write | None]:
            if item is None:
                raise JobNotFound(str(job_id))
            changed = decide(AdminJob.from_item(item))
            return changed, None if changed is None else put(changed, is_logged=False)

        return await update(self._store, admin_job_key(job_id), write, attempts_max=RENEWALS_MAX)

    async def change_held(
        self, job_id: UUID, holder: str, decide: Callable[[AdminJob], AdminJob]
    ) -> AdminJob:
        """Return the job as the run that holds it decides, once that is stored.

        Raises ``HoldLost``.
        """

        def decide_if_held(job: AdminJob) -> AdminJob:
            if job.state is not JobState.RUNNING or job.holder != holder:
                raise HoldLost(f"another run has job {job_id}, or it has ended")
            return decide(job)

        changed = await self.change(job_id, decide_if_held)
        assert changed is not None
        return changed

    async def take(self, job_id: UUID, holder: str) -> AdminJob | None:
        """Return the job as this run holds it; ``None`` if it is not to be taken now."""
        return await self.change(
            job_id, lambda job: states.taken(job, holder, now_ms=self.clock_ms())
        )
