"""Reports malformed items that a list of the registry leaves out, each once."""

from __future__ import annotations

import logging

from tidelog_core.errors import CorruptItem

logger = logging.getLogger(__name__)

REPORTED_MAX = 1_000  # items that are remembered; ``tidelog verify`` names all


class MalformedItems:
    """The items that were reported. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def report(self, error: CorruptItem) -> None:
        """Log the item, unless it was logged before: clients list subjects every few seconds."""
        if error.key in self._reported or len(self._reported) >= REPORTED_MAX:
            return
        self._reported.add(error.key)
        collection, key = error.key
        logger.error(
            "metadata item cannot be read",
            extra={"collection": collection, "key": key, "reason": error.problem},
        )
