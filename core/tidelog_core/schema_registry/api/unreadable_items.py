"""Reports the unreadable entries that the registry's lists leave out, each once."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from tidelog_core.errors import CorruptItem

logger = logging.getLogger(__name__)

REPORTED_MAX = 1_000  # items and versions that are remembered; ``tidelog verify`` names all
REGISTER_AGAIN = "register the same text again, which writes it under its id; run `tidelog verify`"


class UnreadableItems:
    """What was reported. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._reported: set[Hashable] = set()

    def report(self, error: CorruptItem) -> None:
        """Log a malformed item, unless it was logged before: clients list every few seconds."""
        if self._is_new(error.key):
            collection, key = error.key
            logger.error(
                "metadata item cannot be read",
                extra={"collection": collection, "key": key, "reason": error.problem},
            )

    def report_version(self, subject: str, version: int, reason: str) -> None:
        """Log a version whose schema is missing, or one that it refers to; each once."""
        if self._is_new((subject, version)):
            logger.error(
                "schema of a version is missing",
                extra={
                    "subject": subject,
                    "version": version,
                    "reason": reason,
                    "hint": REGISTER_AGAIN,
                },
            )

    def _is_new(self, key: Hashable) -> bool:
        if key in self._reported or len(self._reported) >= REPORTED_MAX:
            return False
        self._reported.add(key)
        return True
