"""Logs refusals of S3 that no retry ends, because an operator has to act.

Callers retry all the same: data stays on the nodes' disks, and readers wait. A refusal is logged
when it begins, every ``REMIND_S`` while it lasts (for alarms over the last minutes), and when it is
over, but not with each retry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

REMIND_S = 240.0  # less than the period of an alarm, five minutes


class Refusals:
    """The current refusals of one store, by operation: ``read``, ``list`` and so on."""

    def __init__(self, bucket: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock_s = clock_s
        self._refused: set[str] = set()
        self._logged_at: dict[str, float] = {}

    def note_refusal(self, operation: str, problem: str) -> None:
        """Log that the operation is refused, unless it was logged within ``REMIND_S``."""
        self._refused.add(operation)
        now_s, logged_at = self._clock_s(), self._logged_at.get(operation)
        if logged_at is not None and now_s - logged_at < REMIND_S:
            return
        self._logged_at[operation] = now_s
        logger.error(
            "object store refuses",
            extra={"bucket": self._bucket, "operation": operation, "reason": problem},
        )

    def note_success(self, operation: str) -> None:
        """Log that the operation is no longer refused, if it was."""
        if operation not in self._refused:
            return
        self._refused.discard(operation)
        logger.info(
            "object store refuses no more",
            extra={"bucket": self._bucket, "operation": operation},
        )
