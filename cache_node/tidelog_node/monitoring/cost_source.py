"""Metrics of this node's costs, and of the cluster's budgets.

Rates are of the last ten samples of the ledger. The budgets, and the items that are paid for by the
hour, are shown only by the node that keeps the ledger in order, so that the sum over all nodes is
the cluster's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.cost.counts import HOUR_MS, by_topic
from tidelog_core.cost.entries import Limits, Tally, limited

from tidelog_node.costs.recorder import CostRecorder
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext


class CostSource:
    """Reads the node's recorder."""

    def __init__(self, node: NodeContext, recorder: CostRecorder) -> None:
        self._node = node
        self._recorder = recorder
        self._recent: Tally | None = None
        self._shown: Sequence[tuple[str, float]] = ()  # of that

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        recorder, prices = self._recorder, self._recorder.prices
        for name, count in sorted(recorder.total.items()):
            scrape.add("tidelog_cost_dollars_total", prices.dollars_of(name, count), name)
        recent, duration_ms = recorder.recently()
        if duration_ms > 0:
            hours = duration_ms / HOUR_MS
            counts = dict(recent.counts)
            if recorder.is_keeper:
                counts |= prices.standing(round(duration_ms))
            for name, count in sorted(counts.items()):
                dollars = prices.dollars_of(name, count) / hours
                scrape.add("tidelog_cost_dollars_per_hour", dollars, name)
            for topic, dollars in self._topics(recent):
                scrape.add("tidelog_cost_topic_dollars_per_hour", dollars / hours, topic)
        for budget in recorder.budgets.known:
            period, forecast = budget.period.value, budget.forecast
            scrape.add("tidelog_cost_spent_dollars", forecast.spent_dollars, period)
            scrape.add("tidelog_cost_forecast_dollars", forecast.dollars, period)
            if budget.budget_dollars is not None:
                scrape.add("tidelog_cost_budget_dollars", budget.budget_dollars, period)
                scrape.add("tidelog_cost_budget_passed", budget.is_passed, period)

    def _topics(self, recent: Tally) -> Sequence[tuple[str, float]]:
        """Return the costs of the most expensive topics; computed once for each sample."""
        if recent is not self._recent:
            prices = self._recorder.prices
            limits = Limits(prices, self._node.config().cost_ledger_topics_max)
            topics = by_topic(limited([recent.topics], limits))
            self._shown = [(topic, prices.dollars(counts)) for topic, counts in topics.items()]
            self._recent = recent
        return self._shown
