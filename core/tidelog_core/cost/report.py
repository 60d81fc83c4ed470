"""The costs of the last hour, day or month, by item and by topic, and a forecast of the month.

Times are UTC. The hour is the last whole one and the current one so far. The day is the last 24
whole hours and the current one so far. The month is the calendar's, from its first day to now, as
on a bill. If the ledger is younger than a period, the period begins with the ledger. Items that
are paid for by the hour (endpoints, load balancer, logs) are charged from then on. A forecast adds
the cost of the period so far to the cost of the last day for each day that is left. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tidelog_core.cost.counts import DAY_MS, HOUR_MS, add_up, by_topic
from tidelog_core.cost.entries import Limits, limited
from tidelog_core.cost.prices import Charge, PriceTable
from tidelog_core.metadata.cost_records import CostDay, CostHour

DAY_HOURS = 24


class Period(StrEnum):
    """The time that a report is about."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a period ``[start_ms, end_ms)``; ``start_ms`` is not before the ledger's."""

    start_ms: int  # Unix time
    end_ms: int
    counts: Mapping[str, int]  # by item, including those that are paid for by the hour
    topic_counts: Mapping[str, int]  # by <topic>/<item>
    writer_count: int

    @property
    def duration_ms(self) -> int:
        """The length of the period; at least 1."""
        return max(1, self.end_ms - self.start_ms)


@dataclass(frozen=True, slots=True)
class TopicCost:
    """The costs of one topic."""

    topic: str
    dollars: float
    charges: Sequence[Charge]


@dataclass(frozen=True, slots=True)
class Report:
    """The costs of a period."""

    counted: Counted
    charges: Sequence[Charge]  # by item
    topics: Sequence[TopicCost]  # the most expensive first
    dollars: float

    @property
    def dollars_per_hour(self) -> float:
        """The mean."""
        return self.dollars * HOUR_MS / self.counted.duration_ms

    @property
    def unassigned_dollars(self) -> float:
        """The part that belongs to no topic: machines, the metadata store and the like."""
        return max(0.0, self.dollars - sum(topic.dollars for topic in self.topics))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The costs of a calendar month or day so far, and at its end."""

    start_ms: int
    end_ms: int
    spent_dollars: float
    dollars: float  # of all of it


def period_start_ms(period: Period, now_ms: int) -> int:
    """Return the begin of the period that ends now."""
    hour = now_ms // HOUR_MS
    match period:
        case Period.HOUR:
            return max(0, hour - 1) * HOUR_MS
        case Period.DAY:
            return max(0, hour - DAY_HOURS) * HOUR_MS
        case Period.MONTH:
            return calendar_month(now_ms)[0]


def calendar_month(now_ms: int) -> tuple[int, int]:
    """Return begin and end of the month, in UTC."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = divmod(begin.year * 12 + begin.month, 12)
    end = begin.replace(year=year, month=month + 1)
    return round(begin.timestamp() * 1000), round(end.timestamp() * 1000)


def calendar_day(now_ms: int) -> tuple[int, int]:
    """Return begin and end of the day, in UTC."""
    begin = now_ms // DAY_MS * DAY_MS
    return begin, begin + DAY_MS


def add_entries(
    hours: Sequence[CostHour],
    days: Sequence[CostDay],
    prices: PriceTable,
    *,
    start_ms: int,
    now_ms: int,
) -> Counted:
    """Return the sum of the entries from ``start_ms`` until now; the entries must not overlap."""
    both: list[CostHour | CostDay] = [*hours, *days]
    entries = [entry for entry in both if start_ms <= _period_start_ms(entry) <= now_ms]
    start_ms = max(start_ms, min(map(_entry_start_ms, entries), default=now_ms))
    counts = add_up([entry.counts for entry in entries])
    if entries:
        counts.update(prices.standing(max(0, now_ms - start_ms)))
    return Counted(
        start_ms,
        max(now_ms, start_ms),
        counts,
        add_up([entry.topic_counts for entry in entries]),
        len({entry.writer for entry in entries}),
    )


def report_of(counted: Counted, prices: PriceTable, *, topics_max: int) -> Report:
    """Return the costs of the counts; topics beyond the ``topics_max`` dearest become one."""
    few = limited([counted.topic_counts], Limits(prices, topics_max))
    topics = [
        TopicCost(topic, prices.dollars(counts), prices.charges(counts))
        for topic, counts in by_topic(few).items()
    ]
    topics.sort(key=lambda topic: (-topic.dollars, topic.topic))
    charges = prices.charges(counted.counts)
    return Report(counted, charges, topics, prices.dollars(counted.counts))


def forecast(
    spent: Counted, rate: Counted, prices: PriceTable, *, bounds: tuple[int, int]
) -> Forecast:
    """Return the costs at the end of the bounds, if ``spent`` goes on to grow at ``rate``."""
    start_ms, end_ms = bounds
    dollars = prices.dollars(spent.counts)
    per_ms = prices.dollars(rate.counts) / rate.duration_ms
    return Forecast(start_ms, end_ms, dollars, dollars + per_ms * max(0, end_ms - spent.end_ms))


def _period_start_ms(entry: CostHour | CostDay) -> int:
    """Return the begin of the hour or the day. A damaged item may be of the far future."""
    return entry.hour * HOUR_MS if isinstance(entry, CostHour) else entry.day * DAY_MS


def _entry_start_ms(entry: CostHour | CostDay) -> int:
    if isinstance(entry, CostHour):
        return max(entry.hour * HOUR_MS, entry.began_ms)
    first_hour = (entry.hours & -entry.hours).bit_length() - 1
    return entry.day * DAY_MS + max(0, first_hour) * HOUR_MS
