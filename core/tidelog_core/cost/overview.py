"""Reads the ledger once for all periods, forecasts and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import DAY_MS, HOUR_MS
from tidelog_core.cost.ledger import read_hours, read_since_day
from tidelog_core.cost.prices import PriceTable, load_prices
from tidelog_core.cost.report import (
    Counted,
    Forecast,
    Period,
    add_entries,
    calendar_day,
    calendar_month,
    forecast,
    period_start_ms,
)
from tidelog_core.metadata.store import MetadataStore

FRESH_MS = 15_000  # Nodes write once a minute, and a reading of a large cluster is megabytes.


@dataclass(frozen=True, slots=True)
class Budget:
    """A calendar month or day, and its budget."""

    period: Period
    forecast: Forecast
    budget_dollars: float | None  # None: there is no budget
    is_settled: bool  # False: the ledger is too young for its forecast to count

    @property
    def is_passed(self) -> bool:
        """Whether it costs more, or will."""
        if self.budget_dollars is None:
            return False
        counts = self.forecast.dollars if self.is_settled else self.forecast.spent_dollars
        return counts > self.budget_dollars


@dataclass(frozen=True, slots=True)
class Overview:
    """The ledger's costs and budgets at one time."""

    now_ms: int
    counted: dict[Period, Counted]
    month: Budget
    day: Budget


async def read_overview(
    store: MetadataStore, prices: PriceTable, config: NodeConfig, *, now_ms: int
) -> Overview:
    """Return an overview of the ledger, read now. Raises the store's errors."""
    day_start_ms = period_start_ms(Period.DAY, now_ms)
    month_bounds, today_bounds = calendar_month(now_ms), calendar_day(now_ms)
    recent = await read_hours(store, first_hour=day_start_ms // HOUR_MS)
    hours, days = await read_since_day(store, first_day=month_bounds[0] // DAY_MS)
    counted = {
        period: add_entries(
            recent, (), prices, start_ms=period_start_ms(period, now_ms), now_ms=now_ms
        )
        for period in (Period.HOUR, Period.DAY)
    }
    month = add_entries(hours, days, prices, start_ms=month_bounds[0], now_ms=now_ms)
    today = add_entries(recent, (), prices, start_ms=today_bounds[0], now_ms=now_ms)
    counted[Period.MONTH] = month
    rate = counted[Period.DAY]
    is_settled = rate.duration_ms >= HOUR_MS
    return Overview(
        now_ms,
        counted,
        Budget(
            Period.MONTH,
            forecast(month, rate, prices, bounds=month_bounds),
            config.cost_budget_month_dollars or None,
            is_settled,
        ),
        Budget(
            Period.DAY,
            forecast(today, rate, prices, bounds=today_bounds),
            config.cost_budget_day_dollars or None,
            is_settled,
        ),
    )


class CostReader:
    """The overview, read at most once in a while. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        config: Callable[[], NodeConfig],
        *,
        fresh_ms: float = FRESH_MS,
    ) -> None:
        """``config`` returns the current settings."""
        self._store = store
        self._config = config
        self._fresh_ms = fresh_ms
        self._prices: PriceTable | None = None
        self._reading = asyncio.Lock()
        self._overview: Overview | None = None
        self._read_ms = 0.0  # by the steady clock
        self._budgets: tuple[float, float] | None = None  # that the overview is about

    def prices(self) -> PriceTable:
        """Return the prices, read on first use. Raises ``InvalidConfig``."""
        if self._prices is None:
            self._prices = load_prices(self._config().cost_price_file)
        return self._prices

    async def overview(self) -> Overview:
        """Return an overview of the ledger that may be a short time old.

        Raises ``InvalidConfig`` and the store's errors.
        """
        prices = self.prices()
        async with self._reading:
            config, now_ms = self._config(), steady_clock_ms()
            budgets = (config.cost_budget_month_dollars, config.cost_budget_day_dollars)
            is_fresh = now_ms - self._read_ms < self._fresh_ms and budgets == self._budgets
            if self._overview is None or not is_fresh:
                self._overview = await read_overview(
                    self._store, prices, config, now_ms=wall_clock_ms()
                )
                self._read_ms, self._budgets = now_ms, budgets
            return self._overview
