"""Adds this node's counts to the ledger, once a minute, and keeps the ledger in order.

Each sample belongs to the hour in which it began; one is taken when an hour ends. What an hour has
gained since the last write is one addition with a token of its own. An addition whose write failed
is kept as it is and repeated, because it may be stored; further counts are collected for the
next one. So nothing is counted twice, and only what a process had not written when it was killed is
lost.

The node with the lowest id of those alive adds hours that are over to their days, deletes old
items, and watches budgets. Two that do so at once do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import CurrentHourClosed, Kept, add, prune, roll_up
from tidelog_core.cost.prices import PriceTable
from tidelog_core.errors import TidelogError
from tidelog_core.turns import Turn

from tidelog_node.costs.budget_watch import BudgetWatch
from tidelog_node.costs.collector import CostCollector, WorkerStatus
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

ADDITIONS_MAX = 8  # that wait for the store; further counts are added to the newest
CLOSE_SECONDS_MAX = 2.0
RATE_SAMPLES = 10  # that the rate of spending is measured over
WATCH_INTERVAL_MS = 600_000  # between two looks at the whole ledger


class CostRecorder:
    """The ledger's writer of one node. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        collector: CostCollector,
        prices: PriceTable,
        *,
        clock_ms: Callable[[], float],
    ) -> None:
        """``clock_ms`` never goes back."""
        config = node.static_config
        self._node = node
        self._collector = collector
        self._clock_ms = clock_ms
        self._interval_ms = config.cost_ledger_interval_ms
        self._writer = f"node-{node.broker_id}"
        self._began_ms = node.clock_ms()  # of the next sample
        self._total = Counter[str]()  # by item, since the process began
        self._waiting: deque[Addition] = deque()  # the first may be stored already
        # Samples, and the time by the steady clock when each began.
        self._recent: deque[tuple[float, Tally]] = deque(maxlen=RATE_SAMPLES)
        self._recently = (Tally(), 0.0)
        self._sampled_ms = clock_ms()
        self._watched_ms: float | None = None
        self._watched_budgets = (0.0, 0.0)
        self._turn = asyncio.Lock()
        self._is_failing = False
        self.prices = prices
        self.budgets = BudgetWatch(node, prices)

    def count_worker(self, status: WorkerStatus) -> None:
        """Count the requests of another worker of the node too; see ``CostCollector``."""
        self._collector.count_worker(status)

    @property
    def total(self) -> Mapping[str, int]:
        """The counts of this process by item, as of the last sample."""
        return self._total

    @property
    def is_keeper(self) -> bool:
        """Whether this node keeps the ledger in order: the live one with the lowest id."""
        live = self._node.membership.live_brokers(self._node.view.image)
        return min(live, default=self._node.broker_id) == self._node.broker_id

    def recently(self) -> tuple[Tally, float]:
        """Return the counts of the last samples, and the milliseconds that they span.

        The same object until the next sample.
        """
        return self._recently

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await asyncio.sleep(self._wait_ms() / 1000)
            try:
                await self.record()
                await self._keep()
            except Exception as error:
                if not isinstance(error, TidelogError):
                    logger.exception("costs not recorded, will retry")
                elif not self._is_failing:
                    logger.warning("costs not recorded, will retry", extra={"reason": str(error)})
                self._is_failing = True
            else:
                self._is_failing = False

    async def close(self) -> None:
        """Record the counts that are left, if that takes little time."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self.record()
        except (TidelogError, TimeoutError) as error:
            extra = {"reason": str(error) or "the metadata store takes too long"}
            logger.warning("last costs not recorded", extra=extra)

    async def record(self) -> None:
        """Take a sample and add it to the ledger.

        Raises ``CurrentHourClosed`` and the store's errors; then it is added later.
        """
        async with self._turn:
            await self._sample()
            limits = Limits(self.prices, self._node.config().cost_ledger_topics_max)
            while self._waiting:
                addition, now_hour = self._waiting[0], self._now_hour()
                if await add(self._node.store, addition, limits, now_hour=now_hour):
                    self._waiting.popleft()
                elif addition.hour == now_hour:
                    raise CurrentHourClosed(now_hour)
                else:  # Its hour is closed, and does not have it.
                    self._waiting[0] = replace(addition, hour=now_hour, token=uuid4().hex)

    async def _sample(self) -> None:
        grown = await self._collector.sample()
        # Without a pause until it waits for the store: a sample is not taken again.
        self._total.update(grown.counts)
        self._recent.append((self._sampled_ms, grown.copy()))  # Additions may be merged.
        self._sampled_ms = self._clock_ms()
        began_ms, self._began_ms = self._began_ms, self._node.clock_ms()
        if grown.counts:
            self._queue(grown, began_ms)
        turn, recent = Turn(), Tally()
        for _, sample in tuple(self._recent):
            await turn.step()
            recent.merge(sample)
        self._recently = (recent, self._sampled_ms - self._recent[0][0])

    def _queue(self, grown: Tally, began_ms: int) -> None:
        """Have the counts wait for the store, as an addition or with one that was not sent yet."""
        hour = began_ms // HOUR_MS
        last = self._waiting[-1] if len(self._waiting) > 1 else None
        if last is not None and (last.hour == hour or len(self._waiting) >= ADDITIONS_MAX):
            last.tally.merge(grown)  # Only the first one may be stored.
            return
        self._waiting.append(Addition(uuid4().hex, hour, self._writer, grown, began_ms))

    async def _keep(self) -> None:
        """Keep the ledger in order and watch budgets, now and then, if it is this node's duty."""
        now_ms = self._clock_ms()
        if not self.is_keeper:
            self.budgets.leave()
            self._watched_ms = None
            return
        config, store, now_hour = self._node.config(), self._node.store, self._now_hour()
        budgets = (config.cost_budget_month_dollars, config.cost_budget_day_dollars)
        is_recent = self._watched_ms is not None and now_ms - self._watched_ms < WATCH_INTERVAL_MS
        if is_recent and budgets == self._watched_budgets:
            return
        limits = Limits(self.prices, config.cost_ledger_topics_max)
        await roll_up(store, limits, now_hour=now_hour)
        hours, days = (
            config.cost_ledger_hourly_retention_hours,
            config.cost_ledger_daily_retention_days,
        )
        await prune(store, Kept(hours, days), limits, now_hour=now_hour)
        await self.budgets.look()
        self._watched_ms, self._watched_budgets = now_ms, budgets

    def _now_hour(self) -> int:
        return self._node.clock_ms() // HOUR_MS

    def _wait_ms(self) -> float:
        """Return the time until the next sample: the interval, or the rest of the hour."""
        left_ms = HOUR_MS - self._node.clock_ms() % HOUR_MS
        return min(self._interval_ms, left_ms + 1)
