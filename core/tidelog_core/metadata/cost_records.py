"""The records of the ledger: the counts of one writer in an hour, and in a day.

A writer is a node, or a function. It adds what it has counted since its last write, with a token
of that addition; the newest tokens are kept, so a repeated addition is recognised. An hour that is
over is added to the item of the day and sealed in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tidelog_core.metadata.fields import Checked, Natural, Omitted
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey

COST_HOUR_COLLECTION = "cost-hour"
COST_DAY_COLLECTION = "cost-day"


def _check_counts(counts: Mapping[str, int]) -> None:
    """Raise ``ValueError`` for counts that no writer makes."""
    if any(count < 0 for count in counts.values()):
        raise ValueError("a count is below 0")


Counted = Annotated[Mapping[str, int], Checked(_check_counts)]


@key_form
def cost_hour_key(hour: int, writer: str) -> ItemKey:
    """Return the key of a writer's counts in an hour."""
    return ItemKey(COST_HOUR_COLLECTION, f"{hour:010d}-{writer}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostHour(Record):
    """The counts of a writer in an hour, by item."""

    KEY = cost_hour_key

    hour: Natural  # since 1970, UTC
    writer: str  # node-<broker id> or function-<name>
    counts: Counted  # by item; includes those of topics
    topic_counts: Counted  # by <topic>/<item>
    added: tuple[str, ...] = ()  # the tokens of the newest additions, the last one last
    began_ms: Omitted[Natural] = 0  # Unix time from which on it was counted; 0: the hour's begin
    is_sealed: Omitted[bool] = False  # True: it is in the day, and nothing is added any more


@key_form
def cost_day_key(day: int, writer: str) -> ItemKey:
    """Return the key of a writer's counts in a day."""
    return ItemKey(COST_DAY_COLLECTION, f"{day:010d}-{writer}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDay(Record):
    """The counts of a writer in the finished hours of a day."""

    KEY = cost_day_key

    day: Natural  # since 1970, UTC
    writer: str
    counts: Counted
    topic_counts: Counted
    hours: Omitted[Natural] = 0  # a bit for each hour of the day that is in the counts
