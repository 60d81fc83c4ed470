"""The log of denied operations: bounded, so that no client can fill a disk.

Each denied operation of a user is logged once, until ``NOTED_MAX`` are known and all are forgotten.
At most ``LINES_MAX`` lines are written in a minute; the others are only counted, and the count is
in the next line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.authorization import Client

from tidelog_node.counters import NodeCounters

logger = logging.getLogger(__name__)

NOTED_MAX = 10_000
LINES_MAX = 100
MINUTE_SECONDS = 60.0
NAME_SIZE_MAX = 249  # characters of a resource's name; a topic has no more

Record = Callable[[Client, AclOperation, ResourceType, str], None]
"""Records a denied operation on the resource of this type and name."""


class DenialLog:
    """For the node's event loop."""

    def __init__(
        self,
        *,
        is_dry_run: bool = False,
        record: Record | None = None,
        counters: NodeCounters | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``record`` is called for every denial."""
        self.is_dry_run = is_dry_run  # nothing is denied, but logged
        self._record = record
        self._counters = counters or NodeCounters()
        self._now = now
        self._noted: set[tuple[str, AclOperation, ResourceType, str]] = set()
        self._minute_ends_at = 0.0
        self._lines_left = LINES_MAX
        self._unlogged_count = 0

    def note(
        self, client: Client, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Log that the client is denied this, or would be, unless that is known."""
        principal, name = client.principals[0], name[:NAME_SIZE_MAX]
        self._counters.denied_count += 1
        if self._record is not None:
            self._record(client, operation, resource_type, name)
        key = (principal, operation, resource_type, name)
        if key in self._noted:
            return
        now = self._now()
        if now >= self._minute_ends_at:
            self._minute_ends_at = now + MINUTE_SECONDS
            self._lines_left = LINES_MAX
        if self._lines_left == 0:
            self._unlogged_count += 1
            return
        self._lines_left -= 1
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted.add(key)
        extra: dict[str, object] = {
            "principal": principal,
            "host": client.host,
            "operation": operation.name,
            "resource": f"{resource_type.name} {name}",
        }
        if self._unlogged_count:
            extra["unlogged_count"] = self._unlogged_count
            self._unlogged_count = 0
        logger.warning("would be denied" if self.is_dry_run else "denied", extra=extra)
