"""A process's clock, watched: what is said when it is in doubt, and once."""

from __future__ import annotations

import logging

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.store import HeardTime
from tidelog_core.retention.clock_rule import Witness
from tidelog_core.retention.clock_watch import ClockWatch, store_witness

from tests.support.memory_store import MemoryMetadataStore

DAY_MS = 86_400_000
T0_MS = 1_700_000_000_000


class Clocks:
    def __init__(self) -> None:
        self.steady = 0.0
        self.off = 0

    def wall_ms(self) -> int:
        return T0_MS + round(self.steady) + self.off

    def steady_ms(self) -> float:
        return self.steady


class ClockedMemoryStore(MemoryMetadataStore):
    """A store that tells the time."""

    heard_time: HeardTime | None = None


def test_a_doubt_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    watch = ClockWatch(
        wall_ms=clocks.wall_ms,
        steady_ms=clocks.steady_ms,
        node_config=NodeConfig,
        sources=[lambda: [Witness("the clock of broker 2", T0_MS, 0.0)]],
    )
    with caplog.at_level(logging.INFO):
        assert watch.may_expire()
        assert caplog.records == []
        clocks.off = 8 * DAY_MS
        for _ in range(3):
            assert not watch.may_expire()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        told = record.__dict__
        assert (told["ahead_ms"], told["ahead_of"]) == (8 * DAY_MS, "the clock of broker 2")
        clocks.off = 0
        assert watch.may_expire()
        assert [each.levelno for each in caplog.records] == [logging.WARNING, logging.INFO]


def test_the_bound_is_the_setting_of_the_moment() -> None:
    clocks = Clocks()
    config = NodeConfig()
    watch = ClockWatch(
        wall_ms=clocks.wall_ms, steady_ms=clocks.steady_ms, node_config=lambda: config
    )
    clocks.off = DAY_MS
    assert not watch.may_expire()
    config = NodeConfig(log_retention_clock_ahead_max_ms=DAY_MS)
    assert watch.may_expire()


def test_a_source_that_is_added_later_is_heard_from_then_on() -> None:
    clocks = Clocks()
    watch = ClockWatch(wall_ms=clocks.wall_ms, steady_ms=clocks.steady_ms, node_config=NodeConfig)
    clocks.off = 8 * DAY_MS
    assert not watch.may_expire()
    now = Witness("the bucket's clock", clocks.wall_ms(), 0.0, is_independent=True)
    watch.add_source(lambda: [now])
    assert watch.may_expire()


def test_a_metadata_store_with_a_clock_has_the_last_word() -> None:
    clocks = Clocks()
    store = ClockedMemoryStore()
    assert list(store_witness(MemoryMetadataStore())()) == []
    assert list(store_witness(store)()) == []
    watch = ClockWatch(wall_ms=clocks.wall_ms, steady_ms=clocks.steady_ms, node_config=NodeConfig)
    clocks.off = 8 * DAY_MS
    assert not watch.may_expire(store_witness(store))
    store.heard_time = HeardTime(clocks.wall_ms(), 0.0)
    assert watch.may_expire(store_witness(store))
    clocks.off += DAY_MS
    assert not watch.may_expire(store_witness(store))


def test_nothing_is_decided_before_everyone_was_heard(caplog: pytest.LogCaptureFixture) -> None:
    heard = [False]
    clocks = Clocks()
    watch = ClockWatch(
        wall_ms=clocks.wall_ms,
        steady_ms=clocks.steady_ms,
        node_config=NodeConfig,
        has_heard_all=lambda: heard[0],
    )
    assert not watch.may_expire()
    heard[0] = True
    assert watch.may_expire()
    assert caplog.records == []
