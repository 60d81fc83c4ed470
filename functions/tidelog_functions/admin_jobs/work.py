"""The work of each kind of job."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.metadata.admin_jobs import JobKind

from tidelog_functions.admin_jobs.erasure import erase
from tidelog_functions.admin_jobs.run import Run, Work
from tidelog_functions.admin_jobs.verification import verify

_WORKS: Mapping[JobKind, Work] = {
    JobKind.ERASURE: erase,
    JobKind.VERIFICATION: verify,
}


async def do_work(run: Run) -> str:
    """Go on with the job from its position; return its result as JSON."""
    return await _WORKS[run.job.kind](run)
