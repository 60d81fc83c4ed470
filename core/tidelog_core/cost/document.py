"""The ledger's answer as JSON: for the admin API, and for ``tidelog cost --json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tidelog_core.cost.counts import OTHER_TOPICS, by_topic, of_topic
from tidelog_core.cost.overview import Budget, Overview
from tidelog_core.cost.prices import Charge, PriceTable
from tidelog_core.cost.report import Period, Report, TopicCost, report_of

NOTE_ELSEWHERE = (
    "This cluster is not on AWS. These are the costs of the same counts there, at list prices:"
    " nobody sends a bill for them."
)
NOTE_ON_AWS = "Counted by the cluster and multiplied by prices; AWS's bill decides."


def cost_document(
    overview: Overview,
    prices: PriceTable,
    period: Period,
    *,
    topics_max: int,
    is_on_aws: bool,
    sees_topic: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the document. Topics that the caller may not see are counted among the others."""
    report = _report(overview, prices, period, topics_max=topics_max, sees_topic=sees_topic)
    counted = report.counted
    return {
        "last": period.value,
        "start_ms": counted.start_ms,
        "end_ms": counted.end_ms,
        "dollars": report.dollars,
        "dollars_per_hour": report.dollars_per_hour,
        "is_on_aws": is_on_aws,
        "note": NOTE_ON_AWS if is_on_aws else NOTE_ELSEWHERE,
        "writer_count": counted.writer_count,
        "price_region": prices.region,
        "price_date": min(price.as_of for price in prices.prices.values()).isoformat(),
        "items": _charges(report.charges),
        "topics": [_topic(topic) for topic in report.topics],
        "unassigned_dollars": report.unassigned_dollars,
        "month": _budget(overview.month),
        "day": _budget(overview.day),
    }


def _report(
    overview: Overview,
    prices: PriceTable,
    period: Period,
    *,
    topics_max: int,
    sees_topic: Callable[[str], bool],
) -> Report:
    counted = overview.counted[period]
    shown: dict[str, int] = {}
    for topic, counts in by_topic(counted.topic_counts).items():
        name = topic if topic == OTHER_TOPICS or sees_topic(topic) else OTHER_TOPICS
        for item, count in counts.items():
            key = of_topic(name, item)
            shown[key] = shown.get(key, 0) + count
    return report_of(replace(counted, topic_counts=shown), prices, topics_max=topics_max)


def _charges(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    return [
        {
            "item": charge.item.name,
            "line": charge.item.line,
            "meaning": charge.item.meaning,
            "unit": charge.item.unit,
            "units": charge.units,
            "dollars": charge.dollars,
            "is_priced": charge.is_priced,
        }
        for charge in charges
    ]


def _topic(topic: TopicCost) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "dollars": topic.dollars,
        "items": _charges(topic.charges),
    }


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "start_ms": budget.forecast.start_ms,
        "end_ms": budget.forecast.end_ms,
        "spent_dollars": budget.forecast.spent_dollars,
        "forecast_dollars": budget.forecast.dollars,
        "budget_dollars": budget.budget_dollars,
        "is_passed": budget.is_passed,
    }
