"""Starts a stream on a machine that is so busy that Spark does not wait for its Python process.

Each stream of a Python source has one process on the driver. Spark waits ten seconds until it has
started and connected, which no setting changes, and ends the query otherwise: «Python worker failed
to connect back». The process connects at its start (``early``), so only a machine that does not
start Python in that time has this failure. Nothing has been read then, and the checkpoint is as
before, so the query can be started again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

START_ATTEMPTS_MAX = 10
LATE_PROCESS = "Python worker failed to connect back"
STARTING = "Initializing"  # how a query's status begins until its sources are there
LOOK_INTERVAL_S = 0.1


def start_stream(
    start: Callable[[], StreamingQuery], *, attempts_max: int = START_ATTEMPTS_MAX
) -> StreamingQuery:
    """Return the query that ``start`` starts, once its sources are there or it has ended.

    Pass ``writer.start``, or a function that calls it. If the process of a source has come too
    late, the query is started again, at most ``attempts_max`` times in all. Other failures, and the
    last one, are the returned query's: ``awaitTermination`` raises them.
    """
    for attempt in range(1, attempts_max + 1):
        query = start()
        reason = _late_process(query)
        if reason is None or attempt == attempts_max:
            break
        logger.warning(
            "the stream's Python process came too late, starting the query again",
            extra={"attempt": attempt, "reason": reason},
        )
    return query


def _late_process(query: StreamingQuery) -> str | None:
    """Wait for the query's sources; return the failure if a process has come too late."""
    try:
        while not query.awaitTermination(LOOK_INTERVAL_S):  # type: ignore[arg-type]
            if not query.status["message"].startswith(STARTING):
                return None
    except StreamingQueryException as error:
        text = str(error)
        return text if LATE_PROCESS in text else None
    return None
