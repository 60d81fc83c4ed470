"""Decisions on the ledger's items: adding counts, adding hours to days, leaving topics out. Pure.

A writer adds what it has counted since its last write. The item keeps the tokens of its newest
additions, so an addition whose outcome was unknown is repeated without harm. When the hour is long
over it is added to the day, in one transaction that also seals it: what comes later is not added
to the hour any more, but to the current one. So every count is in the ledger at most once, and in
a day exactly if its hour is.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog_core.cost.counts import (
    OTHER_TOPICS,
    TOPIC_SEPARATOR,
    Counts,
    add_up,
    of_topic,
)
from tidelog_core.cost.prices import PriceTable
from tidelog_core.metadata.cost_records import CostDay, CostHour

HOURS_PER_DAY = 24
TOKENS_MAX = 16  # of the newest additions; functions share an item
STALE_HOURS = 1  # older counts are added to the current hour
ROLL_UP_HOURS = 3  # an hour is added to its day when that many hours later have begun


@dataclass(slots=True)
class Tally:
    """Counts that grow. ``topics`` has the part of them that belongs to topics."""

    counts: Counter[str] = field(default_factory=Counter)  # by item; includes those of topics
    topics: Counter[str] = field(default_factory=Counter)  # by <topic>/<item>

    def add(self, name: str, count: int, *, topic: str | None = None) -> None:
        """Count something."""
        if count:
            self.counts[name] += count
            if topic is not None:
                self.topics[of_topic(topic, name)] += count

    def merge(self, other: Tally) -> None:
        """Add all counts of another tally."""
        self.counts.update(other.counts)
        self.topics.update(other.topics)

    def copy(self) -> Tally:
        """Return a copy."""
        return Tally(Counter(self.counts), Counter(self.topics))


@dataclass(frozen=True, slots=True)
class Addition:
    """Counts that are added once to the item of a writer and an hour."""

    token: str  # another one for every addition
    hour: int
    writer: str
    tally: Tally
    began_ms: int = 0  # Unix time from which on it was counted; 0: the hour's begin


@dataclass(frozen=True, slots=True)
class Limits:
    """The number of topics that an item names, and the prices by which they are chosen."""

    prices: PriceTable
    topics_max: int


def with_addition(entry: CostHour | None, addition: Addition, limits: Limits) -> CostHour | None:
    """Return the hour with the addition, ``None`` if it has it already. Not for a sealed hour."""
    if entry is None:
        entry = CostHour(
            hour=addition.hour,
            writer=addition.writer,
            counts={},
            topic_counts={},
            began_ms=addition.began_ms,
        )
    assert not entry.is_sealed
    if addition.token in entry.added:
        return None
    return dataclasses.replace(
        entry,
        counts=add_up([entry.counts, addition.tally.counts]),
        topic_counts=limited([entry.topic_counts, addition.tally.topics], limits),
        added=(*entry.added, addition.token)[-TOKENS_MAX:],
        began_ms=min(entry.began_ms, addition.began_ms),
    )


def with_hour(day: CostDay | None, hour: CostHour, limits: Limits) -> CostDay:
    """Return the day with the hour, which it does not have yet."""
    if day is None:
        number = hour.hour // HOURS_PER_DAY
        day = CostDay(day=number, writer=hour.writer, counts={}, topic_counts={})
    assert not has_hour(day, hour.hour)
    return dataclasses.replace(
        day,
        counts=add_up([day.counts, hour.counts]),
        topic_counts=limited([day.topic_counts, hour.topic_counts], limits),
        hours=day.hours | 1 << hour.hour % HOURS_PER_DAY,
    )


def has_hour(day: CostDay, hour: int) -> bool:
    """Whether the counts of the hour are in those of its day."""
    return bool(day.hours >> hour % HOURS_PER_DAY & 1)


def limited(counts: Iterable[Counts], limits: Limits) -> dict[str, int]:
    """Return the sum of topics' counts; topics beyond the most expensive ones become one."""
    total = add_up(counts)
    weights: dict[str, float] = {}  # dollars of one count, by item
    dollars: dict[str, float] = {}  # by topic
    for key, count in total.items():
        topic, _, name = key.partition(TOPIC_SEPARATOR)
        weight = weights.get(name)
        if weight is None:
            weight = weights[name] = limits.prices.dollars_of(name, 1)
        dollars[topic] = dollars.get(topic, 0.0) + count * weight
    dollars.pop(OTHER_TOPICS, None)
    if len(dollars) <= limits.topics_max:
        return dict(total)
    ranked = sorted(dollars, key=lambda topic: (-dollars[topic], topic))
    left_out = set(ranked[limits.topics_max :])
    kept: dict[str, int] = {}
    for key, count in total.items():
        topic, _, name = key.partition(TOPIC_SEPARATOR)
        shown = of_topic(OTHER_TOPICS, name) if topic in left_out else key
        kept[shown] = kept.get(shown, 0) + count
    return kept
