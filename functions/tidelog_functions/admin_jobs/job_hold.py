"""Renews a run's hold of its job, in a thread: rewriting a segment blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from uuid import UUID

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.location import opened_metadata_store

from tidelog_functions.admin_jobs.states import HOLD_MS, kept
from tidelog_functions.admin_jobs.store import HoldLost, JobNotFound, JobStore

logger = logging.getLogger(__name__)

RENEW_SECONDS = HOLD_MS / 1000 / 4


class JobHold:
    """A hold that is renewed for the length of a block. Its fields are read by the run."""

    def __init__(
        self,
        metadata_url: str,
        job_id: UUID,
        holder: str,
        *,
        clock_ms: Callable[[], int],
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self.is_lost = False
        self.is_cancelled = False
        self._metadata_url = metadata_url
        self._job_id, self._holder = job_id, holder
        self._clock_ms = clock_ms
        self._renew_seconds = renew_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hold-{job_id}", daemon=True)

    def __enter__(self) -> JobHold:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self.is_lost and not self._stop.wait(self._renew_seconds):
                runner.run(self._renew())

    async def _renew(self) -> None:
        try:
            async with opened_metadata_store(self._metadata_url, may_be_new=True) as store:
                job = await JobStore(store, self._clock_ms).change_held(
                    self._job_id, self._holder, lambda job: kept(job, now_ms=self._clock_ms())
                )
        except (HoldLost, JobNotFound):
            self.is_lost = True
        except TidelogError as error:
            # The hold lapses if this goes on, and another run takes the job.
            extra = {"job_id": str(self._job_id), "reason": str(error)}
            logger.warning("hold of a job not renewed, will retry", extra=extra)
            return
        else:
            self.is_cancelled = job.is_cancelled
