"""The part of an observer's time in which the silence of others says something about them.

Theory of operation. A broker is suspected because readings of the leases show no renewal for some
time. Where the observer itself did not run, or could not reach or write the metadata store, the
others probably could not either: they share its machine, its network or its store. Then their
silence says nothing about them. So time counts by two rules, and both only ever slow it down:

- **Readings.** From one reading to the next at most the planned interval counts, or a renewal
  interval if that is longer. A reading that comes later shows that the observer did not run, or
  could not read. So no broker is suspected by a single late reading.
- **Own renewals.** The observer's lease is among those that it reads. Until another renewal of its
  own shows there, at most its renewal interval and two intervals between readings count. So while
  nobody can write the store, and for a moment after that, nobody is suspected for it: each broker
  has time to renew before the others take its partitions.

An observer that is slow for good still gets on: every reading counts for up to a renewal interval.
One that cannot renew its lease loses it, and decides nothing.

In an orderly cluster both rules change nothing: readings and renewals come as planned.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What an observer had planned when it read the leases, milliseconds."""

    reading_ms: float  # from the beginning of a reading to that of the next one
    renewal_ms: float  # between two renewals of its own lease

    @property
    def unrenewed_ms_max(self) -> float:
        """The time that may count until a reading shows another renewal of its own."""
        return self.renewal_ms + 2 * self.reading_ms


class ObservedTime:
    """Decides how much of the time between two readings counts. The caller has the clock."""

    def __init__(self) -> None:
        self._read_ms: float | None = None  # when the last reading was begun
        self._unrenewed_ms = 0.0  # counted since a reading has shown an own renewal

    def on_reading(
        self, started_ms: float, plan: ReadingPlan | None, *, has_renewed: bool | None
    ) -> float:
        """Return how much of the time since the previous successful reading counts.

        Without a plan all of it does. ``has_renewed``: whether this reading shows another renewal
        of the observer's own lease; ``None`` if it has none.
        """
        before_ms = self._read_ms
        if before_ms is None:
            self._read_ms = started_ms
            return 0.0
        self._read_ms = max(before_ms, started_ms)
        counted_ms = self._read_ms - before_ms
        if plan is None:
            return counted_ms
        counted_ms = min(counted_ms, max(plan.reading_ms, plan.renewal_ms))
        if has_renewed is None:
            return counted_ms
        counted_ms = min(counted_ms, max(0.0, plan.unrenewed_ms_max - self._unrenewed_ms))
        self._unrenewed_ms = 0.0 if has_renewed else self._unrenewed_ms + counted_ms
        return counted_ms
