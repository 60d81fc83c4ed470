"""Whose requests count for which quota, and how much memory that takes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tidelog_core.admin.settings.client_quotas import QuotaAdmin, QuotaAlteration
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import Principal
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate
from tidelog_node.requests.routes import RequestContext
from tidelog_node.throttling import meters as meters_module
from tidelog_node.throttling.counted_work import counted
from tidelog_node.throttling.meters import Meters
from tidelog_node.throttling.request_timer import RequestTimer
from tidelog_node.throttling.throttle import NO_LIMIT_BYTES, Throttle

from tests.support.request_contexts import a_session, context_of

PRODUCE = "producer_byte_rate"


class World:
    """A throttle over a stored image, with a clock that stands still."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteMetadataStore(path / "metadata.db")
        self.view = ClusterView(self.store, read_again_seconds=0, shows_security=True)
        self.admin = QuotaAdmin(self.store, self.view)
        self.now_ms = 1_000_000
        self.readings_count = 0  # of the clock
        self.throttle = Throttle(self.view, NodeConfig(), clock_ns=self.clock_ns)
        self.throttle.start(self.view)

    def clock_ns(self) -> int:
        """Return the time, and count the call."""
        self.readings_count += 1
        return self.now_ms * 1_000_000

    async def set(self, names: dict[str, str | None], **values: float | None) -> None:
        """Set quotas. A default has the name ``None``."""
        one = QuotaAlteration(names, list(values.items()))
        (error,) = (await self.admin.alter([one], validate_only=False)).values()
        assert error is None

    def wait_ms(self, context: RequestContext, size_bytes: int = 10_000) -> int:
        """Return how long a client must wait after a Produce of this size."""
        self.throttle.produced(context, size_bytes)
        return context.throttle_ms


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.store.commit([put(Cluster(cluster_id="c"))])
    return world


async def test_a_throttle_is_active_while_there_are_quotas(world: World) -> None:
    assert not world.throttle.is_active
    await world.set({"user": None}, producer_byte_rate=1)
    assert world.throttle.is_active
    await world.set({"user": None}, producer_byte_rate=None)
    assert not world.throttle.is_active
    assert world.wait_ms(context_of(9)) == 0


async def test_nodes_of_the_cluster_have_no_limits(world: World) -> None:
    await world.set({"user": None}, producer_byte_rate=1, consumer_byte_rate=1)
    await world.set({"client-id": None}, request_percentage=0.001)
    node = context_of(9, client_id=b"node", node_id=3)
    assert world.wait_ms(node) == 0
    assert world.throttle.fetch_bytes_max(node.session) == NO_LIMIT_BYTES
    assert world.throttle.timer_of(node.session) is None
    assert world.wait_ms(context_of(9, client_id=b"node")) > 0


async def test_a_client_that_logs_in_has_the_quota_of_its_user(world: World) -> None:
    """And a connection that is another user's has another quota."""
    await world.set({"user": "ann"}, producer_byte_rate=1)
    session = a_session()
    assert world.wait_ms(context_of(9, session=session)) == 0
    session.become(Principal("User", "ann"))
    assert world.wait_ms(context_of(9, session=session)) > 0
    session.become(Principal("User", "bob"))
    assert world.wait_ms(context_of(9, session=session)) == 0


async def test_clients_without_a_login_are_the_user_anonymous(world: World) -> None:
    await world.set({"user": "ANONYMOUS"}, producer_byte_rate=1)
    assert world.wait_ms(context_of(9)) > 0


async def test_requests_of_one_connection_count_for_their_client_ids(world: World) -> None:
    await world.set({"client-id": "a"}, producer_byte_rate=1)
    session = a_session()
    assert world.wait_ms(context_of(9, client_id=b"b", session=session)) == 0
    assert world.wait_ms(context_of(9, client_id=b"a", session=session)) > 0
    assert world.wait_ms(context_of(9, client_id=None, session=session)) == 0


async def test_a_fetch_that_alone_is_over_the_quota_is_answered_once(world: World) -> None:
    """Kafka's consumers would never get on. The client waits afterwards."""
    await world.set({"user": None}, consumer_byte_rate=100)
    first, second = context_of(12), context_of(12)
    assert world.throttle.fetched(first, 5_000)
    assert first.throttle_ms == 40_000
    world.now_ms += 1
    assert not world.throttle.fetched(second, 5_000)
    world.now_ms += second.throttle_ms
    assert world.throttle.fetched(context_of(12), 5_000)


async def test_what_a_fetch_does_not_get_is_not_counted(world: World) -> None:
    await world.set({"user": None}, consumer_byte_rate=1_000)
    assert world.throttle.fetched(context_of(12), 9_000)
    over = context_of(12)
    assert not world.throttle.fetched(over, 2_000)
    assert over.throttle_ms == 1_000
    assert world.throttle.fetched(context_of(12), 1_000)


async def test_meters_of_made_up_client_ids_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters_module, "METERS_MAX", 50)
    await world.set({"client-id": None}, producer_byte_rate=1_000, controller_mutation_rate=1)
    for number in range(500):
        context = context_of(9, client_id=f"client-{number}".encode())
        world.wait_ms(context)
        world.throttle.mutations(context, is_strict=True)
    assert len(world.throttle._meters._limits) <= 50
    assert len(world.throttle._meters._buckets) <= 50


def test_meters_that_nobody_uses_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters_module, "METERS_MAX", 3)
    now_ms = 0
    meters = Meters(
        new_rate=lambda: WindowedRate(window_count=2, size_ms=1000),
        new_bucket=lambda: TokenBucket(window_count=2, size_ms=1000),
        clock_ms=lambda: now_ms,
    )
    key = QuotaKey.PRODUCER_BYTE_RATE
    used, *idle = (meters.limit(key, ("", name)) for name in "abc")
    for limit in idle:
        limit.meter.add(1, 0)
    now_ms = 10_000
    used.meter.add(1, now_ms)
    meters.limit(key, ("", "d")).meter.add(1, now_ms)
    assert meters.limit(key, ("", "a")) is used


# -- the time of requests --


async def test_a_request_under_all_quotas_reads_the_clock_twice(world: World) -> None:
    """Once when it begins and once when its time is counted: a small request costs little."""
    ample = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e6}
    await world.set({"user": None}, **ample)
    for is_fetch in (False, True):
        context = context_of(12 if is_fetch else 9)
        context.timer = world.throttle.timer_of(context.session)
        assert context.timer is not None
        world.readings_count = 0
        context.timer.resume()
        world.now_ms += 30
        if is_fetch:
            assert world.throttle.fetched(context, 1_000)
        else:
            world.throttle.produced(context, 1_000)
            world.throttle.timed(context)
        assert world.readings_count == 2
    used = {limit.key[0]: limit.used for limit in world.throttle.limits()}
    assert used == {
        QuotaKey.PRODUCER_BYTE_RATE: 1_000,
        QuotaKey.CONSUMER_BYTE_RATE: 1_000,
        QuotaKey.REQUEST_PERCENTAGE: pytest.approx(6),
    }


async def test_an_answer_that_was_pending_is_counted_at_the_time_when_it_is_ready(
    world: World,
) -> None:
    await world.set({"user": None}, consumer_byte_rate=1_000, request_percentage=1e6)
    context = context_of(12)
    context.timer = world.throttle.timer_of(context.session)
    assert context.timer is not None
    context.timer.resume()
    world.now_ms += 10
    context.timer.pause()
    world.now_ms += 60_000  # a long poll, with nothing else to count
    assert world.throttle.fetched(context, 5_000)
    (fetched,) = (
        limit for limit in world.throttle.limits() if limit.key[0] is QuotaKey.CONSUMER_BYTE_RATE
    )
    assert fetched.meter.rate(world.now_ms) == 500  # in a window that has just begun
    (timed,) = (
        limit for limit in world.throttle.limits() if limit.key[0] is QuotaKey.REQUEST_PERCENTAGE
    )
    assert timed.used == pytest.approx(1)


async def test_a_timer_counts_the_work_and_not_the_waits() -> None:
    async def work() -> str:
        for _ in range(3):
            spin(0.02)
            await asyncio.sleep(0.05)
        return "done"

    timer, began = RequestTimer(time.monotonic_ns), time.perf_counter()
    assert await counted(work(), timer) == "done"
    took_percents = (time.perf_counter() - began) * 100
    assert 6 <= timer.take_percents() <= took_percents - 15
    assert timer.take_percents() == 0


async def test_a_timed_request_is_cancelled_and_fails_like_any_other() -> None:
    seen: list[str] = []

    async def work(*, fails: bool) -> None:
        try:
            await asyncio.sleep(0 if fails else 10)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        await counted(work(fails=True), RequestTimer(time.monotonic_ns))

    async def cancelled() -> None:
        await counted(work(fails=False), RequestTimer(time.monotonic_ns))

    task = asyncio.ensure_future(cancelled())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
