"""``/metrics``: reads the counters of the node when it is scraped, and writes them as text.

Counting costs the node plain integers; ``prometheus_client`` has no part in it. At a scrape the
sources are read on the event loop, in turns, and another thread writes the text. Clients that ask
at the same time get the same page. A page is used again for ten times the time that it took, so
scrapes use at most a tenth of a core, however many clients ask.
"""

from __future__ import annotations

import asyncio
import time
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
from tidelog_node.monitoring.scrape import HistogramValue, Scrape, Series, Source
from tidelog_node.monitoring.table import METRICS, Kind, MetricSpec

REST_FACTOR = 10


class Exposition:
    """Makes the page. For the node's event loop."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._collector = _ScrapeCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._page: Page | None = None
        self._fresh_until = 0.0
        self._making: asyncio.Task[Page] | None = None

    def add(self, source: Source) -> None:
        """Read this source at every scrape too."""
        self._sources.append(source)

    async def metrics(self) -> Page:
        """Return the page."""
        if self._page is not None and time.monotonic() < self._fresh_until:
            return self._page
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._on_made)
        # A client that leaves does not end the work that others wait for.
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        """End the work that is under way."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> Page:
        began = time.monotonic()
        scrape = Scrape()
        for source in tuple(self._sources):
            await source(scrape)
        self._collector.series = scrape.series
        text = await asyncio.to_thread(generate_latest, self._registry)
        page = Page(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)
        now = time.monotonic()
        self._page, self._fresh_until = page, now + REST_FACTOR * (now - began)
        return page

    def _on_made(self, made: asyncio.Task[Page]) -> None:
        self._making = None
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
