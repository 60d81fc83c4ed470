"""Kafka Connect in its distributed mode, exactly once, while a worker and the node are killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX, committed
from tests.ecosystem.workers import Workers
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kafka_connect

LINES = 30_000
_FILE = "org.apache.kafka.connect.file.FileStream"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def workers(tmp_path: Path, node: NodeProcess) -> Iterator[Workers]:
    if kafka_connect.PROGRAM.class_path() is None:
        pytest.skip("Kafka Connect is not installed: run `make tools`")
    with ExitStack() as stack:
        yield Workers(kafka_connect.PROGRAM, tmp_path, node.address, stack, count=2)


def test_each_line_of_a_file_is_in_the_topic_once_and_reaches_the_other_file(
    tmp_path: Path, node: NodeProcess, workers: Workers
) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("lines", 1, 1)])["lines"].result()
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}" for number in range(LINES)]
    third = LINES // 3
    source.write_text("".join(f"{line}\n" for line in lines[:third]))
    workers.put(
        "from-file",
        **{
            "connector.class": f"{_FILE}SourceConnector",
            "file": str(source),
            "topic": "lines",
            "tasks.max": "1",
            "batch.size": "100",
            "exactly.once.support": "required",
        },
    )
    workers.put(
        "to-file",
        **{
            "connector.class": f"{_FILE}SinkConnector",
            "file": str(sink),
            "topics": "lines",
            "tasks.max": "1",
            "consumer.override.isolation.level": "read_committed",
        },
    )

    def sunk() -> set[str]:
        return set(sink.read_text().splitlines()) if sink.exists() else set()

    def told() -> str:
        return f"{len(sunk())} lines; {workers.state('from-file')}; {workers.state('to-file')}"

    eventually(lambda: len(sunk()) > third // 4, told, SECONDS_MAX)
    workers.processes[0].send_signal(9)
    with source.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines[third : 2 * third]))
    eventually(lambda: len(sunk()) > third, told, SECONDS_MAX)
    node.kill()
    with source.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines[2 * third :]))
    node.start()
    eventually(lambda: len(sunk()) == LINES, told, SECONDS_MAX)
    found = [(message.value() or b"").decode() for message in committed(node.address, "lines")]
    assert found == lines, "each line once and in order"
    assert sunk() == set(lines), "a sink of files is at least once"
    assert workers.processes[1].poll() is None
