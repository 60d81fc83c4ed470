"""What is offered reaches a real receiver, or is counted as lost; nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tidelog_node.client_metrics.forwarder import (
    REQUEST_BYTES_MAX,
    WAITING_BYTES_MAX,
    WAITING_PUSHES_MAX,
    Forwarder,
)
from tidelog_node.counters import ClientMetricsTraffic

from tests.support.otlp_receiver import OtlpReceiver, metrics_data
from tests.support.waiting import eventually_async
from tools.ports import free_port


@asynccontextmanager
async def running(forwarder: Forwarder) -> AsyncIterator[None]:
    task = asyncio.create_task(forwarder.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_pushes_reach_the_receiver_in_few_requests_with_its_key() -> None:
    traffic = ClientMetricsTraffic()
    with OtlpReceiver() as receiver:
        forwarder = Forwarder(receiver.url, {"X-Key": "secret"}, traffic)
        for number in range(100):
            assert forwarder.offer(metrics_data(f"m{number}"))
        assert traffic.waiting_bytes > 0
        async with running(forwarder):
            await eventually_async(lambda: traffic.forwarded_count == 100)
        assert [one.name for one in receiver.metrics()] == [f"m{number}" for number in range(100)]
        assert len(receiver.asked) == 1
        assert receiver.asked[0].headers["x-key"] == "secret"
        assert traffic.waiting_bytes == 0
        assert traffic.forwarded_bytes == len(receiver.asked[0].data)


async def test_a_request_is_bounded() -> None:
    traffic = ClientMetricsTraffic()
    large = metrics_data("x" * (REQUEST_BYTES_MAX // 3))
    with OtlpReceiver() as receiver:
        forwarder = Forwarder(receiver.url, {}, traffic)
        for _ in range(5):
            forwarder.offer(large)
        async with running(forwarder):
            await eventually_async(lambda: traffic.forwarded_count == 5)
        assert max(len(asked.data) for asked in receiver.asked) <= REQUEST_BYTES_MAX
        assert len(receiver.asked) == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_receiver_that_is_busy_is_asked_again(status: int) -> None:
    traffic = ClientMetricsTraffic()
    with OtlpReceiver() as receiver:
        receiver.status = status
        forwarder = Forwarder(receiver.url, {}, traffic, delays_seconds=(0.01,) * 1000)
        forwarder.offer(metrics_data("m"))
        async with running(forwarder):
            await eventually_async(lambda: len(receiver.asked) >= 3)
            receiver.status = 200
            await eventually_async(lambda: traffic.forwarded_count == 1)
        assert traffic.unreachable_count == traffic.refused_count == 0


@pytest.mark.parametrize("status", [301, 400, 401, 500])
async def test_what_the_receiver_refuses_is_lost_and_the_next_is_sent(status: int) -> None:
    traffic = ClientMetricsTraffic()
    with OtlpReceiver() as receiver:
        receiver.status = status
        forwarder = Forwarder(receiver.url, {}, traffic)
        forwarder.offer(metrics_data("lost"))
        async with running(forwarder):
            await eventually_async(lambda: traffic.refused_count == 1)
            receiver.status = 200
            forwarder.offer(metrics_data("sent"))
            await eventually_async(lambda: traffic.forwarded_count == 1)
        assert len(receiver.asked) == 2


async def test_what_an_absent_receiver_does_not_take_is_lost_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traffic = ClientMetricsTraffic()
    forwarder = Forwarder(
        f"http://127.0.0.1:{free_port()}", {}, traffic, delays_seconds=(0.01, 0.01)
    )
    with caplog.at_level(logging.WARNING):
        async with running(forwarder):
            forwarder.offer(metrics_data("lost"))
            await eventually_async(lambda: traffic.unreachable_count == 1)
            forwarder.offer(metrics_data("lost too"))
            await eventually_async(lambda: traffic.unreachable_count == 2)
    assert [one.message for one in caplog.records] == ["metrics of clients are lost"]


async def test_what_finds_no_room_is_lost_at_once() -> None:
    traffic = ClientMetricsTraffic()
    forwarder = Forwarder(f"http://127.0.0.1:{free_port()}", {}, traffic)
    part = bytes(WAITING_BYTES_MAX // 4)
    taken = [forwarder.offer(part) for _ in range(6)]
    assert taken == [True] * 4 + [False] * 2
    assert traffic.full_count == 2
    assert traffic.waiting_bytes == WAITING_BYTES_MAX


async def test_pushes_of_no_bytes_are_bounded_too() -> None:
    traffic = ClientMetricsTraffic()
    forwarder = Forwarder(f"http://127.0.0.1:{free_port()}", {}, traffic)
    assert all(forwarder.offer(b"") for _ in range(WAITING_PUSHES_MAX))
    assert not forwarder.offer(b"")
    assert traffic.full_count == 1


async def test_what_waits_when_the_node_stops_is_sent() -> None:
    traffic = ClientMetricsTraffic()
    with OtlpReceiver() as receiver:
        forwarder = Forwarder(receiver.url, {}, traffic)
        forwarder.offer(metrics_data("last"))
        await forwarder.close()
        assert receiver.metric_names() == {"last"}


async def test_a_receiver_that_is_away_does_not_keep_a_node_from_stopping() -> None:
    traffic = ClientMetricsTraffic()
    with OtlpReceiver() as receiver:
        receiver.status = 503
        forwarder = Forwarder(receiver.url, {}, traffic)
        forwarder.offer(metrics_data("last"))
        async with asyncio.timeout(60):
            await forwarder.close()
