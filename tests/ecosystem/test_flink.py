"""Flink copies a topic exactly once, while the job and the node are killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX, committed
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import flink

RECORDS = 30_000
PROGRAM = Path(__file__).with_name("FlinkCopy.java")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_each_record_is_copied_once(tmp_path: Path, node: NodeProcess) -> None:
    if flink.PROGRAM.class_path() is None:
        pytest.skip("Flink is not installed: run `make tools`")
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_topics([NewTopic(t, 3, 1) for t in ("from", "to")]).values():
        future.result()
    settings = tmp_path / "flink.properties"
    settings.write_text(
        f"bootstrap.servers={node.address}\ncheckpoints={tmp_path / 'checkpoints'}\n"
    )

    def send(numbers: range) -> None:
        producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
        for number in numbers:
            producer.produce("from", str(number))
        assert producer.flush(SECONDS_MAX) == 0

    def copied() -> int:
        return len(committed(node.address, "to"))

    def told() -> str:
        return f"{copied()} records are copied: {settings.with_suffix('.log').read_text()[-2000:]}"

    third = RECORDS // 3
    send(range(third))
    with flink.PROGRAM.running(settings, source=PROGRAM) as job:
        eventually(lambda: copied() > 0, told, SECONDS_MAX)
        job.kill()
    send(range(third, 2 * third))
    with flink.PROGRAM.running(settings, source=PROGRAM) as job:
        eventually(lambda: copied() > third, told, SECONDS_MAX)
        node.kill()
        node.start()
        send(range(2 * third, RECORDS))
        eventually(lambda: copied() >= RECORDS, told, SECONDS_MAX)
        assert job.poll() is None
    values = [int(message.value() or b"") for message in committed(node.address, "to")]
    assert sorted(values) == list(range(RECORDS))
    assert "begins at checkpoint file:" in settings.with_suffix(".log").read_text()
