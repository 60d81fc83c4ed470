"""``/metrics``: reads the counters of the node when it is scraped, and writes them as text.

Counting costs the node plain integers; ``prometheus_client`` has no part in it. At a scrape the
sources are read on the event loop, in turns, and another thread writes the text. Clients that ask
while a page is made share the next one, which begins after a rest of four times as long. So scrapes
use at most a fifth of a core, however many clients ask, and no page is older than its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tidelog_node.monitoring.http_server import Page
from tidelog_node.monitoring.scrape import HistogramValue, Series
from tidelog_node.monitoring.sources import Sources
from tidelog_node.monitoring.table import METRICS, Kind, MetricSpec

REST_FACTOR = 4


class Exposition:
    """Makes the page. For the node's event loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._collector = _ScrapeCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._turn = asyncio.Lock()  # of the page that is being made
        self._not_before = 0.0  # the loop's time
        self._next: asyncio.Task[Page] | None = None  # has not begun
        self._tasks: set[asyncio.Task[Page]] = set()

    async def metrics(self) -> Page:
        """Return a page that was begun after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._make())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._on_made)
        # A client that leaves does not end the work that others wait for.
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """End the work that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self) -> Page:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._not_before - loop.time())
            self._next = None  # Clients that ask from here on get another page.
            began = loop.time()
            self._collector.series = (await self._sources.read()).series
            text = await asyncio.to_thread(generate_latest, self._registry)
            self._not_before = loop.time() + REST_FACTOR * (loop.time() - began)
            return Page(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _on_made(self, made: asyncio.Task[Page]) -> None:
        self._tasks.discard(made)
        if not made.cancelled():
            made.exception()  # The clients that wait get it; there may be none any more.


class _ScrapeCollector(Collector):
    """Hands the series of the newest scrape to ``prometheus_client``."""

    def __init__(self) -> None:
        self.series: Mapping[str, Sequence[Series]] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the order of the table."""
        for name, metric in METRICS.items():
            series = self.series.get(name)
            if series:
                yield _family(metric, series)


def _family(metric: MetricSpec, series: Sequence[Series]) -> Metric:
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in series:
            assert isinstance(value, HistogramValue), metric.name
            family.add_metric(labels, _buckets(value), value.total)
        return family
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in series:
        assert not isinstance(value, HistogramValue), metric.name
        family.add_metric(labels, value)
    return family


def _buckets(value: HistogramValue) -> list[tuple[str, float]]:
    bounds = (*map(repr, map(float, value.bounds)), "+Inf")
    return list(zip(bounds, accumulate(value.counts), strict=True))
