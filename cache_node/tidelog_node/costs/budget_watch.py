"""Compares the ledger with budgets, and says once a day when one is passed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog_core.cost.counts import DAY_MS
from tidelog_core.cost.overview import Budget, read_overview
from tidelog_core.cost.prices import PriceTable
from tidelog_core.cost.report import Period

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

HINT = "see `tidelog cost --last month`, or raise the budget"


class BudgetWatch:
    """Watches months and days against their budgets. For the node's event loop."""

    def __init__(self, node: NodeContext, prices: PriceTable) -> None:
        self._node = node
        self._prices = prices
        self._said_on: dict[Period, int] = {}  # the day of the last line in the log
        self.known: Sequence[Budget] = ()  # as last seen; nothing while another node watches

    async def look(self) -> None:
        """Read the ledger. Raises the store's errors."""
        config, now_ms = self._node.config(), self._node.clock_ms()
        found = await read_overview(self._node.store, self._prices, config, now_ms=now_ms)
        self.known = (found.month, found.day)
        for budget in self.known:
            if budget.is_passed:
                self._say(budget, today=now_ms // DAY_MS)

    def leave(self) -> None:
        """Forget the spending seen so far: another node watches."""
        self.known = ()

    def _say(self, budget: Budget, *, today: int) -> None:
        if self._said_on.get(budget.period) == today:
            return
        self._said_on[budget.period] = today
        logger.warning(
            "costs pass the budget",
            extra={
                "period": budget.period.value,
                "budget_dollars": budget.budget_dollars,
                "spent_dollars": round(budget.forecast.spent_dollars, 2),
                "forecast_dollars": round(budget.forecast.dollars, 2),
                "setting": f"cost.budget.{budget.period.value}.dollars",
                "hint": HINT,
            },
        )
