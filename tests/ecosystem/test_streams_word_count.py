"""Kafka Streams counts words exactly once, while an instance and the node are killed."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX, committed
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import word_count

LINES, WORDS_OF_A_LINE = 15_000, 5
VOCABULARY = [f"word{number}" for number in range(100)]
PROGRAM = Path(__file__).with_name("WordCount.java")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def settings(folder: Path, address: str, number: int) -> Path:
    path = folder / f"instance-{number}.properties"
    path.write_text(
        "\n".join(
            (
                "application.id=words",
                f"bootstrap.servers={address}",
                "processing.guarantee=exactly_once_v2",
                "num.standby.replicas=1",
                "replication.factor=1",
                "commit.interval.ms=100",
                "auto.offset.reset=earliest",
                "consumer.session.timeout.ms=10000",
                "consumer.heartbeat.interval.ms=3000",
                "producer.transaction.timeout.ms=20000",
                f"state.dir={folder / f'state-{number}'}",
            )
        )
    )
    return path


def counts_of(address: str) -> dict[str, list[int]]:
    """Return the counts of each word in the order of their offsets."""
    found: dict[str, list[int]] = {}
    for message in committed(address, "counts"):
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        found.setdefault(key.decode(), []).append(int.from_bytes(value, "big"))
    return found


def test_every_word_is_counted_once(tmp_path: Path, node: NodeProcess) -> None:
    if word_count.PROGRAM.class_path() is None:
        pytest.skip("Kafka Streams is not installed: run `make tools`")
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_topics([NewTopic(t, 3, 1) for t in ("lines", "counts")]).values():
        future.result()
    words = random.Random(1)
    expected: Counter[str] = Counter()

    def send(count: int) -> None:
        producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
        for _ in range(count):
            line = words.choices(VOCABULARY, k=WORDS_OF_A_LINE)
            expected.update(line)
            producer.produce("lines", " ".join(line))
        assert producer.flush(SECONDS_MAX) == 0

    def counted() -> int:
        return sum(max(counts) for counts in counts_of(node.address).values())

    def told() -> str:
        return f"{counted()} of {expected.total()} words are counted"

    with ExitStack() as stack:
        instances = [
            stack.enter_context(
                word_count.PROGRAM.running(settings(tmp_path, node.address, n), source=PROGRAM)
            )
            for n in range(2)
        ]
        send(LINES // 3)
        eventually(lambda: counted() > 0, told, SECONDS_MAX)
        instances[0].kill()
        send(LINES // 3)
        eventually(lambda: counted() > LINES * WORDS_OF_A_LINE // 3, told, SECONDS_MAX)
        node.kill()
        node.start()
        send(LINES - 2 * (LINES // 3))
        eventually(lambda: counted() == LINES * WORDS_OF_A_LINE, told, SECONDS_MAX)
        assert instances[1].poll() is None
    found = counts_of(node.address)
    assert {word: counts[-1] for word, counts in found.items()} == expected
    for word, counts in found.items():
        assert counts == sorted(set(counts)), f"the count of {word} goes back, or is there twice"
