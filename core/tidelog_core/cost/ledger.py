"""The ledger in the metadata store: who has counted what, hour by hour and day by day.

    cost-hour   <hour>-<writer>   what a writer has counted in an hour: a write a minute
    cost-day    <day>-<writer>    the same of a day: a write an hour

All writes expect the version that they were decided from. ``entries`` says why nothing is counted
twice. ``roll_up`` is for one node at a time, but several do no harm. The progress item says up to
which hour all are added to their days, so a reader of a month reads days and few hours. It may go
back: the clock of the node that rolled up may have been ahead.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog_core.cost.entries import (
    HOURS_PER_DAY,
    ROLL_UP_HOURS,
    STALE_HOURS,
    Addition,
    Limits,
    has_hour,
    with_addition,
    with_hour,
)
from tidelog_core.errors import CorruptItem, TidelogError, VersionConflict
from tidelog_core.metadata.cost_records import (
    COST_DAY_COLLECTION,
    COST_HOUR_COLLECTION,
    CostDay,
    CostHour,
    cost_day_key,
    cost_hour_key,
)
from tidelog_core.metadata.records import FunctionProgress, function_progress_key, put
from tidelog_core.metadata.store import Item, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import retried, update
from tidelog_core.turns import Turn

Entry = TypeVar("Entry", CostHour, CostDay)

PROGRESS = "cost-ledger"
DELETIONS_PER_PASS = 500
LAG_HOURS_MAX = 24  # by which other writers hold the roll-up back; later they count as gone


class CurrentHourClosed(TidelogError):
    """The hour that it is by this clock is in its day already, so nothing is added to it."""

    hint = "compare the clocks of the nodes: some differ by hours"

    def __init__(self, hour: int) -> None:
        super().__init__(f"the ledger of costs is closed for the current hour, {hour} since 1970")


@dataclass(frozen=True, slots=True)
class Kept:
    """The ages at which the ledger's items are removed."""

    hours: int
    days: int


async def add(store: MetadataStore, addition: Addition, limits: Limits, *, now_hour: int) -> bool:
    """Add to the ledger, once. Return whether it has it now; ``False``: add it to a newer hour.

    Then it is in the ledger nowhere. Durable on return. Raises the store's errors; afterwards the
    same addition may be repeated.
    """
    key = cost_hour_key(addition.hour, addition.writer)
    is_stale = now_hour - addition.hour > STALE_HOURS

    def decide(item: Item | None) -> tuple[bool, Write | None]:
        if item is None and is_stale:
            return False, None  # Its hour may have been added to the day without it.
        entry = None if item is None else CostHour.from_item(item)
        if entry is not None and entry.is_sealed:
            return addition.token in entry.added, None
        changed = with_addition(entry, addition, limits)
        return True, None if changed is None else put(changed, is_logged=False)

    return await update(store, key, decide)


async def rolled_up_to(store: MetadataStore) -> int:
    """Return the hour below which every hour is in its day; 0: none is."""
    return _hour_of(await store.get(function_progress_key(PROGRESS)))


async def roll_up(store: MetadataStore, limits: Limits, *, now_hour: int) -> int:
    """Add the hours that are long over to their days; return the number of items added.

    A damaged item is left where it is. Raises the store's errors; repeating it continues.
    """
    end = now_hour - ROLL_UP_HOURS + 1
    progress = await store.get(function_progress_key(PROGRESS))
    begun = _hour_of(progress)
    if end == begun:
        return 0
    # If a clock was ahead, hours may have come since below the progress.
    first = min(begun, max(0, end - LAG_HOURS_MAX)) if begun < end else 0
    items = await store.list(COST_HOUR_COLLECTION, keys=KeyRange(_key_from(first)))
    end = min(end, _confirmed_hour(items, now_hour) - ROLL_UP_HOURS + 1)
    added = 0
    for item in items:
        if item.id.key >= _key_from(end):
            break
        try:
            entry = CostHour.from_item(item)
            added += not entry.is_sealed and await _roll_up_one(store, entry, limits)
        except CorruptItem:
            continue
    if end == begun:
        return added
    record = FunctionProgress(
        function=PROGRESS,
        resumes_after=str(end),
        version=0 if progress is None else progress.version,
    )
    with contextlib.suppress(VersionConflict):  # Another node has done the same.
        await store.commit([put(record, is_logged=False)])
    return added


async def prune(store: MetadataStore, kept: Kept, limits: Limits, *, now_hour: int) -> int:
    """Delete items older than they are kept; return their number, which is bounded.

    Hours that are not in their days yet are kept, or added to them if the progress says that they
    are: a writer's clock was behind that of who rolled up.
    """
    oldest = min(now_hour - kept.hours, await rolled_up_to(store))
    hours = KeyRange(end=_key_from(max(0, oldest)), limit=DELETIONS_PER_PASS)
    oldest_day = max(0, now_hour // HOURS_PER_DAY - kept.days)
    days = KeyRange(end=_key_from(oldest_day), limit=DELETIONS_PER_PASS)
    deleted = 0
    for collection, keys in ((COST_HOUR_COLLECTION, hours), (COST_DAY_COLLECTION, days)):
        for item in await store.list(collection, keys=keys):
            if collection == COST_HOUR_COLLECTION:
                entry = _readable(CostHour, item)
                if entry is not None and not entry.is_sealed:
                    await _roll_up_one(store, entry, limits)
                    continue  # The next pass deletes it.
            with contextlib.suppress(VersionConflict):  # Another node has deleted it.
                await store.commit([Write(item.id, None, item.version, is_logged=False)])
                deleted += 1
    return deleted


async def read_hours(store: MetadataStore, *, first_hour: int) -> list[CostHour]:
    """Return the hours from one on, without damaged items."""
    keys = KeyRange(_key_from(first_hour))
    return await _all_readable(CostHour, await store.list(COST_HOUR_COLLECTION, keys=keys))


async def read_since_day(
    store: MetadataStore, *, first_day: int
) -> tuple[list[CostHour], list[CostDay]]:
    """Return days from one on, and the hours since then that are not in them."""
    # Hours first: an hour that is added to its day in between is in both, and is recognised.
    first_hour = max(await rolled_up_to(store), first_day * HOURS_PER_DAY)
    hours = await read_hours(store, first_hour=first_hour)
    keys = KeyRange(_key_from(first_day))
    days = await _all_readable(CostDay, await store.list(COST_DAY_COLLECTION, keys=keys))
    by_key = {(day.day, day.writer): day for day in days}
    return [hour for hour in hours if not _is_in(by_key.get(_day_of(hour)), hour)], days


def _confirmed_hour(items: Sequence[Item], now_hour: int) -> int:
    """Return the hour that it is by the items of at least two writers.

    The clock of a single writer, or of one whose others have written nothing for long, is taken
    as it is.
    """
    newest: dict[str, int] = {}
    for item in items:
        hour, _, writer = item.id.key.partition("-")
        if hour.isdecimal():
            newest[writer] = int(hour)  # Items are in the order of their hours.
    by_two = sorted(newest.values())[-2:]
    if len(by_two) < 2 or now_hour - by_two[0] > LAG_HOURS_MAX:
        return now_hour
    return by_two[0]


def _is_in(day: CostDay | None, hour: CostHour) -> bool:
    return day is not None and has_hour(day, hour.hour)


def _day_of(hour: CostHour) -> tuple[int, str]:
    return hour.hour // HOURS_PER_DAY, hour.writer


async def _roll_up_one(store: MetadataStore, entry: CostHour, limits: Limits) -> bool:
    async def attempt() -> bool:
        ids = [entry.item_id, cost_day_key(*_day_of(entry))]
        found = await store.get_many(ids)
        if ids[0] not in found:
            return False
        hour = CostHour.from_item(found[ids[0]])
        if hour.is_sealed:
            return False
        day = CostDay.from_item(found[ids[1]]) if ids[1] in found else None
        writes = [with_hour(day, hour, limits), dataclasses.replace(hour, is_sealed=True)]
        await store.commit([put(record, is_logged=False) for record in writes])
        return True

    return await retried(attempt)


def _key_from(number: int) -> str:
    return f"{number:010d}"


def _hour_of(progress: Item | None) -> int:
    if progress is None:
        return 0
    text = FunctionProgress.from_item(progress).resumes_after
    return int(text) if text.isdigit() else 0


async def _all_readable(record: type[Entry], items: Sequence[Item]) -> list[Entry]:
    """Return the entries in turns: those of a month of a large cluster are megabytes."""
    turn, found = Turn(), list[Entry]()
    for item in items:
        await turn.step()
        entry = _readable(record, item)
        if entry is not None:
            found.append(entry)
    return found


def _readable(record: type[Entry], item: Item) -> Entry | None:
    try:
        return record.from_item(item)
    except CorruptItem:
        return None
