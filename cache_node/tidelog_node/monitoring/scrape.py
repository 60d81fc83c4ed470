"""The values of one scrape, before they become text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog_node.monitoring.table import METRICS


class HistogramValue(NamedTuple):
    """A histogram's buckets, not cumulative."""

    bounds: Sequence[float]  # the upper bounds of all buckets but the last, ascending
    counts: Sequence[int]  # one more than bounds
    total: float  # the sum of the observations


Value = float | HistogramValue
Series = tuple[tuple[str, ...], Value]  # the values of the labels, and the value


class Scrape:
    """Collects series. For the node's event loop."""

    def __init__(self) -> None:
        self._series: dict[str, list[Series]] = defaultdict(list)

    @property
    def series(self) -> Mapping[str, Sequence[Series]]:
        """The series by the name of their metric."""
        return self._series

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add one series of a metric of the table."""
        assert len(labels) == len(METRICS[name].labels), name
        self._series[name].append((labels, value))


Source = Callable[[Scrape], Coroutine[Any, Any, None]]
"""Adds the series of one part of the node, in turns if there may be many."""
