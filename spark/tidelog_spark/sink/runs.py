"""Runs of a stream's query: each writes with transactional ids of its own.

Spark gives every start of a query a run id. Two runs may be at work at once: a query was started
twice with one checkpoint, or a driver that was taken for dead comes back. Both write the same
micro-batch then. If they shared transactional ids, each new attempt of a task would end the other
run's, and both might fail, again and again. So each run has a lane, which is a part of the
transactional ids. Neither ends an attempt of the other, and the first to decide wins
(``sink.commit``).

The number of lanes is fixed: coordinators keep a transactional id for a week, and there are queries
that start every minute. So a run claims a pair of lanes, ``2n`` and ``2n + 1``, that none of the
runs before has claimed lately (``sink.lanes``).

After each decision of its own a run changes to the other lane of its pair. A transaction that is
decided keeps its id to itself then until the next decision. If it did not, a run that is one
micro-batch behind would find a later producer with that id, and take the decided rows for lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidelog_spark.sink.clients import SinkNames


@dataclass(frozen=True, slots=True)
class DecidingRun:
    """The run that has decided a micro-batch."""

    run_id: str
    host: str  # of its driver
    lane: int

    def __str__(self) -> str:
        return f"run {self.run_id} on {self.host}"


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One run of a query. Small to pickle."""

    names: SinkNames
    run_id: str

    def has_made(self, decision: DecidingRun | None) -> bool:
        """Whether this run has made a decision; ``None`` is an earlier program's."""
        return decision is not None and decision.run_id == self.run_id

    def lane_after(self, last: DecidingRun | None) -> int | None:
        """Return the lane to write in next; ``None`` if it is the one that the run has claimed.

        ``last`` has decided the last micro-batch.
        """
        return last.lane ^ 1 if last is not None and self.has_made(last) else None


def attempt_id(names: SinkNames, lane: int | None, task: int, attempt: int) -> str:
    """Return the transactional id of an attempt of a task; earlier programs had no lanes."""
    numbers = (task, attempt) if lane is None else (lane, task, attempt)
    return "-".join((names.group_id, *map(str, numbers)))


def owns_attempt(names: SinkNames, transactional_id: str, lane: int | None = None) -> bool:
    """Whether the transactional id is that of an attempt, in the lane if one is given."""
    lanes = r"(\d+-)?" if lane is None else f"{lane}-"
    form = rf"{re.escape(names.group_id)}-{lanes}\d+-\d+"
    return re.fullmatch(form, transactional_id) is not None
