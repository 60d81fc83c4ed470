"""Collects the current faults of this node.

Parts of the node report faults and clear them when they are over; status answers read them.
The node does not act on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.clock import wall_clock_ms


@dataclass(frozen=True, slots=True)
class HealthReason:
    """One current fault."""

    name: str  # the kind of fault, such as ``disk-full``
    detail: str
    since_ms: int  # epoch milliseconds


class NodeHealth:
    """The current faults of the node. For the node's event loop only."""

    def __init__(self, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._reasons: dict[tuple[str, str], HealthReason] = {}

    @property
    def is_well(self) -> bool:
        """Whether there is no known fault."""
        return not self._reasons

    @property
    def reasons(self) -> tuple[HealthReason, ...]:
        """The current faults, the oldest first."""
        return tuple(self._reasons.values())

    def report(self, name: str, detail: str, *, subject: str = "") -> bool:
        """Record a fault; ``subject`` distinguishes several of one name.

        Returns whether it is new. A repeated report only replaces the detail.
        """
        known = self._reasons.get((name, subject))
        since_ms = self._clock_ms() if known is None else known.since_ms
        self._reasons[name, subject] = HealthReason(name, detail, since_ms)
        return known is None

    def clear(self, name: str, *, subject: str = "") -> bool:
        """Remove the fault. Returns whether it had been reported."""
        return self._reasons.pop((name, subject), None) is not None
