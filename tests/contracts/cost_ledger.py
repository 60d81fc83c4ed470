"""What the ledger promises on every metadata store: nothing is counted twice, nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import DAY_MS, HOUR_MS, STANDING
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import (
    LAG_HOURS_MAX,
    Kept,
    add,
    prune,
    read_hours,
    read_since_day,
    roll_up,
    rolled_up_to,
)
from tidelog_core.cost.overview import read_overview
from tidelog_core.cost.prices import list_prices
from tidelog_core.cost.report import Period, calendar_month
from tidelog_core.errors import OutcomeUnknown
from tidelog_core.metadata.store import MetadataStore

from tests.contracts.metadata_update import Fate, FatedStore, Open

# The 26th of November 2026, 14:30 UTC.
NOW_MS = 1_795_703_400_000
NOW_HOUR = NOW_MS // HOUR_MS
LIMITS = Limits(list_prices(), 3)
TOPICS = ("a", "b", "c", "d", "e", None)
COUNTED = ("object-put", "object-get", "metadata-write", "zone-transfer", "machine:i4i.large")


def random_tally(rng: random.Random) -> Tally:
    tally = Tally()
    for _ in range(rng.randrange(1, 5)):
        tally.add(rng.choice(COUNTED), rng.randrange(1, 10**9), topic=rng.choice(TOPICS))
    return tally


@dataclass
class Truth:
    """What was counted, by hour."""

    by_hour: dict[int, Tally] = field(default_factory=dict)

    def note(self, hour: int, tally: Tally) -> None:
        self.by_hour.setdefault(hour, Tally()).merge(tally)

    def since(self, hour: int) -> Counter[str]:
        total = Counter[str]()
        for at, tally in self.by_hour.items():
            if at >= hour:
                total.update(tally.counts)
        return total


def without_standing(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name not in STANDING}


async def add_until_known(store: MetadataStore, addition: Addition, now_hour: int) -> bool:
    for _ in range(50):
        try:
            return await add(store, addition, LIMITS, now_hour=now_hour)
        except OutcomeUnknown:
            pass
    raise AssertionError("never known")


class CostLedgerContract:
    """``open`` opens one more store on the same empty data."""

    hours = 30  # that are filled at random

    @pytest.mark.parametrize("seed", range(3))
    async def test_whatever_becomes_of_writes_sums_are_those_of_what_was_counted(
        self, open: Open, seed: int
    ) -> None:
        rng = random.Random(seed)
        truth = Truth()
        async with open() as real:
            fated = FatedStore(real)
            store: MetadataStore = fated  # type: ignore[assignment]
            for hour in range(NOW_HOUR - self.hours, NOW_HOUR + 1):
                fated.fates = lambda: rng.choices(list(Fate), (6, 1, 1, 1))[0]
                for writer in ("node-1", "node-2", "function-retention"):
                    for number in range(rng.randrange(3)):
                        tally = random_tally(rng)
                        token = f"{writer}-{hour}-{number}"  # as of one process or another
                        addition = Addition(token, hour, writer, tally)
                        assert await add_until_known(store, addition, hour)
                        truth.note(hour, tally)
                fated.fates = lambda: rng.choices(list(Fate), (6, 0, 1, 1))[0]
                for _ in range(2):  # by two nodes, or again after an error
                    await self._roll_up(store, hour)
            fated.fates = lambda: Fate.TOLD
            await fated.end_late()
            await self._roll_up(store, NOW_HOUR)
            overview = await read_overview(real, LIMITS.prices, NodeConfig(), now_ms=NOW_MS)
            month_hour = calendar_month(NOW_MS)[0] // HOUR_MS
            for period, first in (
                (Period.HOUR, NOW_HOUR - 1),
                (Period.DAY, NOW_HOUR - 24),
                (Period.MONTH, month_hour),
            ):
                counted = overview.counted[period].counts
                assert without_standing(counted) == truth.since(first), period

    async def _roll_up(self, store: MetadataStore, hour: int) -> None:
        for _ in range(20):
            try:
                await roll_up(store, LIMITS, now_hour=hour)
            except OutcomeUnknown:
                continue
            return

    async def test_an_addition_to_a_sealed_hour_is_turned_away(self, open: Open) -> None:
        async with open() as store:
            first = Addition("t-1", NOW_HOUR - 5, "node-1", Tally(Counter({"object-put": 1})))
            late = Addition("t-2", NOW_HOUR - 5, "node-1", Tally(Counter({"object-put": 2})))
            assert await add(store, first, LIMITS, now_hour=NOW_HOUR - 5)
            assert await roll_up(store, LIMITS, now_hour=NOW_HOUR) == 1
            assert not await add(store, late, LIMITS, now_hour=NOW_HOUR)
            assert await add(store, first, LIMITS, now_hour=NOW_HOUR)  # It is there already.
            [hour] = await read_hours(store, first_hour=0)
            assert hour.counts == {"object-put": 1}

    async def test_an_addition_to_an_old_hour_without_an_item_is_turned_away(
        self, open: Open
    ) -> None:
        async with open() as store:
            late = Addition("t", NOW_HOUR - 2, "node-1", Tally(Counter({"object-put": 2})))
            assert not await add(store, late, LIMITS, now_hour=NOW_HOUR)
            assert await read_hours(store, first_hour=0) == []

    async def test_what_is_too_old_is_deleted_and_days_stay(self, open: Open) -> None:
        async with open() as store:
            hours = (NOW_HOUR - 24 * 50, NOW_HOUR - 100, NOW_HOUR - 10, NOW_HOUR)
            for hour in hours:
                addition = Addition(f"t-{hour}", hour, "node-1", Tally(Counter({"object-put": 1})))
                assert await add(store, addition, LIMITS, now_hour=hour)
            kept = Kept(hours=72, days=32)
            # They are in no day yet.
            assert await prune(store, kept, LIMITS, now_hour=NOW_HOUR) == 0
            assert await roll_up(store, LIMITS, now_hour=NOW_HOUR) == 3
            assert await rolled_up_to(store) == NOW_HOUR - 2
            assert await prune(store, kept, LIMITS, now_hour=NOW_HOUR) == 3  # two hours and a day
            assert [one.hour for one in await read_hours(store, first_hour=0)] == list(hours[2:])
            rest, days = await read_since_day(store, first_day=0)
            assert [one.hour for one in rest] == [NOW_HOUR]
            assert sum(day.counts["object-put"] for day in days) == 2
            assert all(day.day >= NOW_MS // DAY_MS - 32 for day in days)

    @pytest.mark.parametrize("ahead", [2, 5, 20, 40])
    async def test_a_keeper_whose_clock_is_ahead_keeps_no_hour_from_its_day(
        self, open: Open, ahead: int
    ) -> None:
        """While it is, and after its clock was set right."""
        async with open() as store:
            counted = 0
            for hour in range(NOW_HOUR, NOW_HOUR + 12):
                by_keeper = hour + ahead if hour < NOW_HOUR + 8 else hour
                for writer, at in (("node-1", by_keeper), ("node-2", hour), ("node-3", hour)):
                    counted += await add_one(store, writer, at)
                await roll_up(store, LIMITS, now_hour=by_keeper)
                if ahead <= LAG_HOURS_MAX:
                    assert await put_count(store) == counted
            assert await put_count(store) == counted
            assert await rolled_up_to(store) <= NOW_HOUR + 12

    async def test_the_only_writer_keeps_all_hours_after_its_clock_was_set_back(
        self, open: Open
    ) -> None:
        async with open() as store:
            counted = 0
            for hour in (NOW_HOUR, NOW_HOUR + 30, *range(NOW_HOUR + 1, NOW_HOUR + 6)):
                counted += await add_one(store, "node-1", hour)
                await roll_up(store, LIMITS, now_hour=hour)
            assert await put_count(store) == counted
            assert await rolled_up_to(store) == NOW_HOUR + 3

    async def test_writers_that_are_gone_hold_nothing_up_for_long(self, open: Open) -> None:
        async with open() as store:
            for writer in ("node-2", "node-3"):
                await add_one(store, writer, NOW_HOUR)
            for hour in range(NOW_HOUR, NOW_HOUR + 40):
                await add_one(store, "node-1", hour)
                await roll_up(store, LIMITS, now_hour=hour)
                assert await rolled_up_to(store) >= hour - 2 - LAG_HOURS_MAX
            assert await rolled_up_to(store) == NOW_HOUR + 37

    async def test_no_hour_is_deleted_before_it_is_in_its_day(self, open: Open) -> None:
        async with open() as store:
            await add_one(store, "node-1", NOW_HOUR + 200)
            await roll_up(store, LIMITS, now_hour=NOW_HOUR + 200)
            assert await add_one(store, "node-2", NOW_HOUR) == 1
            for _ in range(2):
                await prune(store, Kept(72, 32), LIMITS, now_hour=NOW_HOUR + 200)
            assert [hour.writer for hour in await read_hours(store, first_hour=0)] == ["node-1"]
            assert await put_count(store) == 2


async def add_one(store: MetadataStore, writer: str, hour: int) -> int:
    """Count a request in an hour, by a clock that says the same; return how many were."""
    addition = Addition(uuid4().hex, hour, writer, Tally(Counter({"object-put": 1})))
    return await add(store, addition, LIMITS, now_hour=hour)


async def put_count(store: MetadataStore) -> int:
    """Return the requests that a reader of months finds."""
    hours, days = await read_since_day(store, first_day=0)
    return sum(entry.counts["object-put"] for entry in (*hours, *days))
