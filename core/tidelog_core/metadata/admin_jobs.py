"""Jobs of the admin API: long work that a request starts and several processes bring to its end.

An item has a job's whole state, so that any process may continue it. Its writers bound its size.
The ``request`` of an erasure has the key until the job has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog_core.metadata.fields import Natural
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey

ADMIN_JOB_COLLECTION = "admin-job"
NO_HOLDER = ""


class JobKind(Enum):
    """The work of a job."""

    VERIFICATION = "verification"
    ERASURE = "erasure"


class JobState(Enum):
    """The state of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


@key_form
def admin_job_key(job_id: UUID) -> ItemKey:
    """Return the key of a job."""
    return ItemKey(ADMIN_JOB_COLLECTION, f"{job_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminJob(Record):
    """A job and its progress."""

    KEY = admin_job_key

    job_id: UUID
    kind: JobKind
    state: JobState
    caller: str  # the principal that started it
    request: str  # JSON
    created_ms: Natural  # Unix time
    # Unix time from which the next thing is to be done with it: a process takes it if it waits, or
    # if its holder has been lost; the item is removed if the job has ended.
    due_ms: Natural
    holder: str = NO_HOLDER  # the run that has it, another one each time; all that may write it
    lost_count: Natural = 0  # runs one after another that ended without progress
    is_cancelled: bool = False  # its holder is to end it
    step_count: Natural = 0
    steps: tuple[str, ...] = ()  # the last of them
    position: str = ""  # JSON: where it continues; empty: at its beginning
    result: str = ""  # JSON; empty: it has none
    problem: str = ""  # why it has failed

    @property
    def has_ended(self) -> bool:
        """Whether it is done, has failed or was cancelled."""
        return self.state in ENDED
