"""How long brokers throttle a client that exceeds its quotas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.kafka.batches import good_batch
from tests.kafka.compare import Pair
from tests.kafka.pairs import pair_with
from tests.support.client_quotas import alter_quotas, component, describe_quotas, op
from tests.support.peer import Peer

# They measure times. ``tests/node/throttling`` and ``tests/core/quotas/test_kafkas_quotas.py``, which
# calls Kafka's own classes, test the same rules without a wall clock.
pytestmark = pytest.mark.slow

# A client may use the quota of two seconds at once.
CONFIG = {"quota.window.num": "3", "controller.quota.window.num": "3"}
BATCH = good_batch(b"x" * 25_000)
BYTES_PER_S = 50_000.0
TOLERANCE_MS = 60  # two brokers, two cores
TOOK = "took"
HICCUP_MS = 250  # the time that a busy machine may add to an answer that is not throttled
NOT_THROTTLED_MS = 30

Waits = list[tuple[str, int]]
"""What was asked, with its answer, and how long its client must wait."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give brokers that have no quotas yet."""
    root = tmp_path_factory.mktemp("throttled")
    with pair_with(root, CONFIG) as peers:
        yield peers


def both(pair: Pair, name: str, case: Callable[[Peer], Any], **quotas: float) -> tuple[Any, Any]:
    """Return the case's results of both brokers, by a client of this id with these quotas."""

    def run(peer: Peer) -> Any:
        client = Peer(peer.name, peer.port, client_id=name.encode())
        client.timeout = 20
        client.create_topic(name)
        entity = {"client-id": name}
        alter_quotas(peer, (entity, [op(key, value) for key, value in quotas.items()]))
        peer.until(
            lambda: describe_quotas(peer, component("client-id", 0, name)),
            lambda answer: bool(answer["entries"]),
        )
        time.sleep(0.3)  # Kafka's broker shows them before they count.
        try:
            return case(client)
        finally:
            client.close()

    with ThreadPoolExecutor(2) as pool:
        kafka, tidelog = pool.map(run, (pair.kafka, pair.tidelog))
    return kafka, tidelog


def assert_alike(kafka: Waits, tidelog: Waits, *, tolerance_ms: int = TOLERANCE_MS) -> None:
    """Compare the waits. A client waits less by the time that its answers took until then."""
    print(f"kafka   {kafka}\ntidelog {tidelog}")
    assert [what for what, _ in tidelog] == [what for what, _ in kafka]
    slower_ms = 0  # how much more the machine has delayed Kafka's answers so far
    for (what, theirs), (_, ours) in zip(kafka, tidelog, strict=True):
        if what == TOOK and max(theirs, ours) < HICCUP_MS:
            slower_ms += theirs - ours
            continue
        assert abs(theirs - ours) <= max(tolerance_ms, theirs // 10) + abs(slower_ms)
    assert any(wait > NOT_THROTTLED_MS for _, wait in kafka)
    assert any(wait <= NOT_THROTTLED_MS for _, wait in kafka)


def produced(peer: Peer, topic: str, batch: bytes = BATCH) -> Any:
    """Produce one batch; return the whole answer."""
    partition = {"index": 0, "records": batch}
    return peer.call(
        "produce",
        9,
        transactional_id=None,
        acks=1,
        timeout=5000,
        topic_data=[{"name": topic, "partition_data": [partition]}],
    )


def test_produce_requests_wait_alike(pair: Pair) -> None:
    """Each is answered at once: the client waits before its next request."""
    name = "produce"

    def case(peer: Peer) -> Waits:
        waits: Waits = []
        began = time.monotonic()
        for _ in range(6):
            answer = produced(peer, name)
            result = answer["responses"][0]["partition_responses"][0]
            took_ms = round((time.monotonic() - began) * 1000)
            began = time.monotonic()
            waits += [(result["error_code"], answer["throttle_time"]), (TOOK, took_ms)]
        return waits

    assert_alike(*both(pair, name, case, producer_byte_rate=BYTES_PER_S))


def test_requests_behind_those_without_acks_wait_alike(pair: Pair) -> None:
    def case(peer: Peer) -> Waits:
        for _ in range(6):
            peer.send_produce("no-acks", BATCH, acks=0)
        began = time.monotonic()
        peer.call("api_versions", 0)
        return [(TOOK, round((time.monotonic() - began) * 1000)), ("not throttled", 0)]

    assert_alike(*both(pair, "no-acks", case, producer_byte_rate=BYTES_PER_S))


@dataclass(frozen=True, slots=True)
class TimedFetch:
    """An answer to a fetch, its client's wait, and when the broker measured it.

    That was between the two times, in milliseconds since the broker measured the first one.
    """

    what: str
    wait_ms: int
    earliest_ms: float
    latest_ms: float

    @property
    def is_throttled(self) -> bool:
        """Whether its client must wait."""
        return self.wait_ms > NOT_THROTTLED_MS


def assert_fetches_alike(kafka: list[TimedFetch], tidelog: list[TimedFetch]) -> None:
    """Compare the times at which the waits end.

    A client waits less by the time that has passed since its first request. So the ends are alike
    however busy the machine is.
    """
    print("\n".join(f"{theirs}\n{ours}" for theirs, ours in zip(kafka, tidelog, strict=True)))
    assert [each.what for each in tidelog] == [each.what for each in kafka]
    assert [each.is_throttled for each in tidelog] == [each.is_throttled for each in kafka]
    assert {each.is_throttled for each in kafka} == {True, False}
    for theirs, ours in zip(kafka, tidelog, strict=True):
        if theirs.is_throttled:
            earliest_end = max(each.earliest_ms + each.wait_ms for each in (theirs, ours))
            latest_end = min(each.latest_ms + each.wait_ms for each in (theirs, ours))
            assert earliest_end - latest_end <= TOLERANCE_MS
    for fetches in (kafka, tidelog):
        for before, after in pairwise(fetches):
            # A broker reads the next request once the wait is over.
            assert after.latest_ms >= before.earliest_ms + before.wait_ms


@pytest.mark.parametrize("epoch", [-1, 0])
def test_fetches_wait_alike(pair: Pair, epoch: int) -> None:
    """A throttled one has no partitions, and opens no session."""
    name = f"fetch-{'full' if epoch else 'session'}"
    # Three are far enough below the quota of two seconds, and the fourth is far above.
    batch = good_batch(b"x" * 32_000)

    def case(peer: Peer) -> list[TimedFetch]:
        for _ in range(6):
            produced(peer, name, batch)
        fetches: list[TimedFetch] = []
        offset, session_id, session_epoch = 0, 0, epoch
        first_sent = first_received = 0.0
        for number in range(7):
            sent = time.monotonic()
            answer = peer.fetch(
                name,
                offset,
                partition_max_bytes=len(batch),  # Kafka would send the first part of one more.
                session_id=session_id,
                session_epoch=session_epoch,
            )
            received = time.monotonic()
            if number == 0:
                first_sent, first_received = sent, received
            partitions = [one for topic in answer["responses"] for one in topic["partitions"]]
            size = sum(len(one["records"] or b"") for one in partitions)
            offset += bool(size)
            if answer["session_id"]:
                session_id, session_epoch = answer["session_id"], session_epoch + 1
            what = f"{answer['error_code']}, {len(partitions)}, {size}, session {session_id > 0}"
            earliest_ms, latest_ms = (sent - first_received) * 1000, (received - first_sent) * 1000
            fetches.append(TimedFetch(what, answer["throttle_time"], earliest_ms, latest_ms))
        return fetches

    assert_fetches_alike(*both(pair, name, case, consumer_byte_rate=BYTES_PER_S))


def test_a_fetch_asks_for_no_more_than_the_quota_allows(pair: Pair) -> None:
    """Neither as its largest answer nor as its smallest.

    Kafka's first answer is empty: with its header it has a few bytes more than the quota. Where a
    limit cuts a batch Tidelog ends before it.
    """

    def case(peer: Peer) -> tuple[int, bool]:
        for _ in range(8):
            produced(peer, "bounded")
        began = time.monotonic()
        answer = peer.until(
            lambda: peer.fetch("bounded", 0, min_bytes=150_000, max_wait=45_000),
            lambda answer: bool(answer["responses"]),
        )
        size = len(answer["responses"][0]["partitions"][0]["records"])
        return size, time.monotonic() - began < 40

    kafka, tidelog = both(pair, "bounded", case, consumer_byte_rate=BYTES_PER_S)
    assert kafka == (2 * BYTES_PER_S, True)
    assert tidelog == (kafka[0] // len(BATCH) * len(BATCH), True)


def creation(peer: Peer, name: str, count: int, *, version: int = 7, **fields: object) -> Any:
    topic = {"name": name, "num_partitions": count, "replication_factor": 1}
    return peer.call("create_topics", version, topics=[topic], timeout=10_000, **fields)


def test_topics_are_created_widened_and_deleted_alike(pair: Pair) -> None:
    def case(peer: Peer) -> Waits:
        waits: Waits = []

        def note(answer: Any, field: str) -> None:
            codes = [one["error_code"] for one in answer[field]]
            waits.append((f"{field} {codes}", answer["throttle_time"]))

        note(creation(peer, "mutated", 3), "topics")  # refused: it is there
        note(creation(peer, "mutated-1", 6), "topics")
        note(creation(peer, "mutated-2", 6), "topics")
        note(creation(peer, "mutated-3", 6), "topics")
        note(creation(peer, "mutated-4", 1), "topics")
        widened = {"name": "mutated-1", "count": 9}
        note(peer.call("create_partitions", 3, topics=[widened], timeout=10_000), "results")
        widened = {"name": "mutated-1", "count": 15}
        note(peer.call("create_partitions", 2, topics=[widened], timeout=10_000), "results")
        gone = [{"name": "mutated-2", "topic_id": None}]
        note(peer.call("delete_topics", 6, topics=gone, timeout=10_000), "responses")
        gone = [{"name": "mutated-1", "topic_id": None}, {"name": "mutated-3", "topic_id": None}]
        note(peer.call("delete_topics", 6, topics=gone, timeout=10_000), "responses")
        note(creation(peer, "mutated-5", 1, version=5), "topics")
        return waits

    kafka, tidelog = both(pair, "mutated", case, controller_mutation_rate=5.0)
    # Tokens come back while topics are made, which takes Kafka longer.
    assert_alike(kafka, tidelog, tolerance_ms=500)


def test_the_time_of_requests_is_limited_alike(pair: Pair) -> None:
    """How much time a request takes differs, but not the longest wait: one window."""

    def case(peer: Peer) -> list[int]:
        waits: list[int] = []
        for _ in range(30):
            answer = peer.call("metadata", 12, topics=[{"name": "timed"}])
            waits.append(answer["throttle_time"])
            if waits[-1] == 1000:
                break
        return waits

    for waits in both(pair, "timed", case, request_percentage=0.001):
        assert waits[-1] == 1000
        assert max(waits) == 1000


def test_ten_times_the_quota_is_let_through_at_the_same_rate(pair: Pair) -> None:
    """By clients that do not wait by themselves: their next request waits in the socket.

    Rates are measured over two to three seconds here, so what is let through has a period of three.
    """
    seconds, rate = 30.0, 400_000.0
    client_count = 4

    def case(peer: Peer) -> float:
        def load(_: int) -> int:
            with closing(Peer(peer.name, peer.port, client_id=b"load")) as client:
                client.timeout = 30
                sent_bytes, began = 0, time.monotonic()
                while (elapsed := time.monotonic() - began) < seconds + 6:
                    produced(client, "load")
                    sent_bytes += len(BATCH) * (elapsed >= 6)
            return sent_bytes

        with ThreadPoolExecutor(client_count) as pool:
            return sum(pool.map(load, range(client_count))) / seconds

    kafka, tidelog = both(pair, "load", case, producer_byte_rate=rate)
    print(f"of the quota: kafka {kafka / rate:.3f}, tidelog {tidelog / rate:.3f}")
    assert abs(tidelog - kafka) <= 0.05 * kafka
