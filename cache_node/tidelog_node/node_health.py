"""Collects the current faults of this node.

Parts of the node tell it what they have found and when it is over; whoever wants to know
whether the node is well asks here. Nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.clock import wall_clock_ms


@dataclass(frozen=True, slots=True)
class HealthReason:
    """One thing that is wrong."""

    name: str  # of the kind of trouble, as in ``disk-full``
    detail: str
    since_ms: int  # epoch milliseconds


class NodeHealth:
    """The reasons why the node is not well. For the node's event loop only."""

    def __init__(self, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._reasons: dict[tuple[str, str], HealthReason] = {}

    @property
    def is_well(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self._reasons

    @property
    def reasons(self) -> tuple[HealthReason, ...]:
        """What is wrong, the oldest first."""
        return tuple(self._reasons.values())

    def report(self, name: str, detail: str, *, subject: str = "") -> bool:
        """Note that something is wrong, of a subject where there may be several.

        Returns whether it is news. The newest detail is kept.
        """
        known = self._reasons.get((name, subject))
        since_ms = self._clock_ms() if known is None else known.since_ms
        self._reasons[name, subject] = HealthReason(name, detail, since_ms)
        return known is None

    def clear(self, name: str, *, subject: str = "") -> bool:
        """Note that it is over. Returns whether it was reported."""
        return self._reasons.pop((name, subject), None) is not None
