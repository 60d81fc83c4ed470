"""Pages of metrics: shared, fresh, and served although a part of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidelog_node.monitoring.exposition import REST_FACTOR, Exposition
from tidelog_node.monitoring.scrape import HistogramValue, Scrape
from tidelog_node.monitoring.sources import Sources

from tests.support.http_pages import Scraped


@pytest.fixture
def sources() -> Sources:
    return Sources()


@pytest.fixture
async def exposition(sources: Sources) -> AsyncIterator[Exposition]:
    made = Exposition(sources)
    yield made
    await made.close()


class Numbered:
    """A source that counts its readings."""

    def __init__(self) -> None:
        self.count = 0

    async def collect(self, scrape: Scrape) -> None:
        self.count += 1
        scrape.add("tidelog_cluster_topics", self.count)


async def scraped(exposition: Exposition) -> Scraped:
    return Scraped((await exposition.metrics()).body.decode())


async def test_a_source_that_fails_hides_no_other_and_is_logged_once(
    exposition: Exposition, sources: Sources, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = True

    async def broken(scrape: Scrape) -> None:
        scrape.add("tidelog_cluster_brokers", 1)
        if is_broken:
            raise OSError("disk")

    sources.add(broken)
    sources.add(Numbered().collect)
    for number in (1, 2):
        found = await scraped(exposition)
        assert found.value("tidelog_scrape_failed_sources") == 1
        assert found.value("tidelog_cluster_topics") == number
    assert len(caplog.records) == 1
    is_broken = False
    assert (await scraped(exposition)).value("tidelog_scrape_failed_sources") == 0


async def test_requests_at_the_same_time_share_a_page_that_was_begun_after_them(
    exposition: Exposition,
    sources: Sources,
) -> None:
    source, may_go_on, begun = Numbered(), asyncio.Event(), asyncio.Event()

    async def slow(_: Scrape) -> None:
        begun.set()
        await may_go_on.wait()

    sources.add(source.collect)
    sources.add(slow)
    first = asyncio.create_task(scraped(exposition))
    await begun.wait()
    later = [asyncio.create_task(scraped(exposition)) for _ in range(100)]
    await asyncio.sleep(0)
    may_go_on.set()
    assert (await first).value("tidelog_cluster_topics") == 1
    assert {page.value("tidelog_cluster_topics") for page in await asyncio.gather(*later)} == {2}


async def test_a_client_that_leaves_does_not_end_the_page_of_others(
    exposition: Exposition,
    sources: Sources,
) -> None:
    sources.add(Numbered().collect)
    leaver = asyncio.create_task(scraped(exposition))
    stayer = asyncio.create_task(scraped(exposition))
    await asyncio.sleep(0)
    leaver.cancel()
    assert (await stayer).value("tidelog_cluster_topics") == 1


async def test_a_rest_follows_each_page(exposition: Exposition, sources: Sources) -> None:
    """So clients that ask without end get a fifth of the time at most."""

    async def slow(_: Scrape) -> None:
        await asyncio.sleep(0.02)

    sources.add(slow)
    await exposition.metrics()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await exposition.metrics()
    assert loop.time() - began >= (REST_FACTOR + 1) * 0.02


async def test_labels_are_escaped_and_histograms_are_cumulative(
    exposition: Exposition, sources: Sources
) -> None:
    group = 'a"b\\c\nd é'

    async def collect(scrape: Scrape) -> None:
        scrape.add("tidelog_kafka_consumer_group_lag", 7, group, "t")
        scrape.add("tidelog_lease_renewal_seconds", HistogramValue((0.5, 1.0), (1, 0, 2), 9.5))

    sources.add(collect)
    found = await scraped(exposition)
    assert found.labels("tidelog_kafka_consumer_group_lag", "group") == {group}
    name = "tidelog_lease_renewal_seconds"
    assert found.values(f"{name}_bucket") == [1, 1, 3]
    assert (found.value(f"{name}_count"), found.value(f"{name}_sum")) == (3, 9.5)


async def test_a_series_that_the_table_does_not_have_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Scrape().add("tidelog_unknown", 1)
    with pytest.raises(AssertionError):
        Scrape().add("tidelog_cluster_topics", 1, "label")
