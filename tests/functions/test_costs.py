"""What invocations of a function add to the ledger."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.entries import Limits
from tidelog_core.cost.ledger import read_hours, roll_up
from tidelog_core.cost.prices import list_prices
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.cost_records import CostHour
from tidelog_core.metadata.store import ItemKey
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_functions.costs import MEMORY_VARIABLE, counted_stores
from tidelog_functions.invocation import FunctionSettings

FOLDER = f"c1/orders-{UUID(int=7)}"
MINUTE_MS = 60_000.0


class SteadyClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_ms = 5_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def settings(tmp_path: Path) -> FunctionSettings:
    (tmp_path / "objects").mkdir()
    return FunctionSettings(
        metadata_url=f"sqlite://{tmp_path}/metadata.db",
        objects_url=f"file://{tmp_path}/objects",
        node_config=NodeConfig(),
    )


async def invoke(settings: FunctionSettings, clock: SteadyClock, *, number: int = 0) -> None:
    """Do as a function does: read an item, write two objects, of which one is a topic's."""
    async with counted_stores(settings, "retention", clock_ms=clock) as (store, objects):
        await store.get(ItemKey("topic", "orders"))
        await objects.put(f"{FOLDER}/{number}.log", b"12345")
        await objects.put(f"c1/{number}.json", b"{}")
        await objects.get(f"{FOLDER}/{number}.log")


async def ledger(settings: FunctionSettings) -> list[CostHour]:
    store = SqliteMetadataStore(Path(settings.metadata_url.removeprefix("sqlite://")))
    try:
        return await read_hours(store, first_hour=0)
    finally:
        await store.close()


def total(hours: list[CostHour]) -> Counter[str]:
    return sum((Counter(hour.counts) for hour in hours), Counter())


async def test_an_invocation_is_counted_with_its_requests_and_time(
    settings: FunctionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "1024")
    await invoke(settings, SteadyClock())
    hours = await ledger(settings)
    assert {hour.writer for hour in hours} == {"function-retention"}
    counts = total(hours)
    assert (counts["function-call"], counts["object-put"], counts["object-get"]) == (1, 2, 1)
    assert (counts["object-sent"], counts["object-received"]) == (7, 5)
    assert counts["function-event"] == 2
    assert counts["function-time"] % 1024 == 0
    assert counts["metadata-read"] >= 1_000
    topics = sum((Counter(hour.topic_counts) for hour in hours), Counter[str]())
    assert topics == {
        "orders/object-put": 1,
        "orders/function-event": 1,
        "orders/object-get": 1,
        "orders/object-sent": 5,
        "orders/object-received": 5,
    }


async def test_a_process_adds_once_a_minute(settings: FunctionSettings) -> None:
    clock = SteadyClock()
    for number in range(4):
        await invoke(settings, clock, number=number)
        clock.now_ms += 20_000  # The last one comes a minute after the first.
    assert total(await ledger(settings))["function-call"] == 4
    await invoke(settings, clock, number=9)
    assert total(await ledger(settings))["function-call"] == 4
    clock.now_ms += MINUTE_MS
    await invoke(settings, clock, number=10)
    counts = total(await ledger(settings))
    assert (counts["function-call"], counts["object-put"]) == (6, 12)
    assert counts["metadata-write"] >= 2_000  # the additions themselves


async def test_an_invocation_that_fails_is_counted(settings: FunctionSettings) -> None:
    async def fail() -> None:
        async with counted_stores(settings, "scrub", clock_ms=SteadyClock()) as (_, objects):
            await objects.put(f"{FOLDER}/1.log", b"1")
            raise StoreUnavailable("as the test wants")

    with pytest.raises(StoreUnavailable, match="as the test wants"):
        await fail()
    counts = total(await ledger(settings))
    assert (counts["function-call"], counts["object-put"]) == (1, 1)


async def test_what_could_not_be_added_is_added_later(
    settings: FunctionSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = SteadyClock(), tmp_path / "metadata.db"
    async with counted_stores(settings, "retention", clock_ms=clock) as (store, objects):
        await store.get(ItemKey("topic", "orders"))
        await objects.put(f"{FOLDER}/1.log", b"1")
        path.rename(tmp_path / "elsewhere.db")  # The store notices that its file is gone.
    assert [one.message for one in caplog.records] == ["costs not recorded, will retry"]
    (tmp_path / "elsewhere.db").rename(path)
    clock.now_ms += MINUTE_MS
    await invoke(settings, clock, number=2)
    counts = total(await ledger(settings))
    assert (counts["function-call"], counts["object-put"]) == (2, 3)


async def test_while_the_current_hour_is_closed_counts_wait(
    settings: FunctionSettings, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SteadyClock()
    await invoke(settings, clock)
    store = SqliteMetadataStore(Path(settings.metadata_url.removeprefix("sqlite://")))
    await roll_up(store, Limits(list_prices(), 3), now_hour=wall_clock_ms() // HOUR_MS + 4)
    await store.close()
    clock.now_ms += MINUTE_MS
    await invoke(settings, clock, number=1)
    assert [one.message for one in caplog.records] == ["costs not recorded, will retry"]
    assert "closed for the current hour" in vars(caplog.records[0])["reason"]
    assert total(await ledger(settings))["function-call"] == 1


async def test_without_a_ledger_nothing_is_counted(settings: FunctionSettings) -> None:
    config = NodeConfig(cost_ledger_enable=False)
    off = dataclasses.replace(settings, node_config=config)
    for number in range(3):
        await invoke(off, SteadyClock(), number=number)
    assert await ledger(settings) == []
    await invoke(settings, SteadyClock(), number=9)
    assert total(await ledger(settings))["function-call"] == 1
