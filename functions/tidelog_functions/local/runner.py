"""Calls the handlers like AWS: when an index object is written, and by schedule.

One call at a time, in this process's only thread; nodes are other processes. Work that is
unfinished when this process ends is continued by the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import TidelogError
from tidelog_core.objects.location import parse_object_location

from tidelog_functions.invocation import Context
from tidelog_functions.local.events import Event, object_created, scheduled
from tidelog_functions.local.watch import IndexWatch

logger = logging.getLogger(__name__)

Handler = Callable[[object, Context], Mapping[str, object]]

TIME_LIMIT_MS = 900_000  # Source: Lambda quotas, function timeout.
POLL_INTERVAL_S = 1.0
SCRUB_INTERVAL_S = 86_400.0
FIRST_SCRUB_S = 600.0  # leaves a cluster that has just started undisturbed
PARTITIONS_BY_EVENT_MAX = 16  # more changes at once: one pass over all is cheaper
DELETION_WAIT_S_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handlers that would be deployed in Lambda."""

    retention: Handler
    scrub: Handler


class LocalContext:
    """The context of one call: Lambda's longest time limit, shortened by a stop."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._end = time.monotonic() + TIME_LIMIT_MS / 1000

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time of the call."""
        if self._is_stopping():
            return 0
        return max(0, round((self._end - time.monotonic()) * 1000))


class LocalRunner:
    """Watches a folder store, if the objects are in one, and runs the schedules."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        objects_url: str,
        retention_interval_s: float,
        wait: Callable[[float], bool],
    ) -> None:
        """``wait`` returns after that many seconds, or earlier with true for a stop."""
        self._handlers = handlers
        location = parse_object_location(objects_url)
        self._bucket = location.name
        is_folder = location.scheme == "file"
        self._watch = IndexWatch(Path(self._bucket)) if is_folder else None
        self._interval_s = retention_interval_s
        self._wait = wait
        # Due immediately: much may have become due since the last run.
        self._retention_due = time.monotonic()
        self._scrub_due = time.monotonic() + FIRST_SCRUB_S

    def run(self) -> None:
        """Call handlers until stopped."""
        wait_s = 0.0
        while not self._wait(wait_s):
            if self._watch is not None and not Path(self._bucket).is_dir():
                wait_s = POLL_INTERVAL_S  # The first node makes the folder.
                continue
            self._call_for_objects()
            if time.monotonic() >= self._retention_due:
                self._retention_due = time.monotonic() + self._retain()
            if time.monotonic() >= self._scrub_due:
                self._scrub_due = time.monotonic() + SCRUB_INTERVAL_S
                self._call(self._handlers.scrub, scheduled("scrub", now_ms=wall_clock_ms()))
            wait_s = POLL_INTERVAL_S
            if self._watch is None:
                due = min(self._retention_due, self._scrub_due)
                wait_s = max(0.0, due - time.monotonic())

    def _call_for_objects(self) -> None:
        keys = [] if self._watch is None else self._watch.poll()
        by_partition = {key.rpartition("/")[0]: key for key in keys}
        if len(by_partition) > PARTITIONS_BY_EVENT_MAX:
            self._retention_due = time.monotonic()
            return
        for key in by_partition.values():
            event = object_created(self._bucket, key, now_ms=wall_clock_ms())
            summary = self._call(self._handlers.retention, event)
            self._retention_due = min(self._retention_due, time.monotonic() + self._next_s(summary))

    def _retain(self) -> float:
        """Run retention's schedule; return the seconds until the next run."""
        event = scheduled("retention", now_ms=wall_clock_ms())
        return self._next_s(self._call(self._handlers.retention, event))

    def _next_s(self, summary: Mapping[str, object]) -> float:
        """Return the next run's time: the interval, or the end of a deletion's delay."""
        due_ms = summary.get("next_deletion_ms")
        if not isinstance(due_ms, int):
            return self._interval_s
        wait_s = (due_ms - wall_clock_ms()) / 1000
        return min(self._interval_s, max(DELETION_WAIT_S_MIN, wait_s))

    def _call(self, handler: Handler, event: Event) -> Mapping[str, object]:
        """Call the handler like Lambda: errors are logged, and later calls still happen."""
        try:
            return handler(event, LocalContext(lambda: self._wait(0.0)))
        except TidelogError as error:
            problem = f"{type(error).__name__}: {error}"
            logger.error("function failed", extra={"event": event["id"], "reason": problem})
        except Exception:
            logger.exception("function broke", extra={"event": event["id"]})
        return {}
