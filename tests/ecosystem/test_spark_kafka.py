"""Spark's own Kafka source copies a topic into files exactly once, while driver and node are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import spark_kafka
from tools.places import ROOT, ToolAbsent

RECORDS = 30_000
PROGRAM = Path(__file__).with_name("spark_copy.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def copying(address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the driver; it and its JVM are killed at the end."""
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, str(PROGRAM), address, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def copied(folder: Path) -> list[int]:
    """Return the values of the files that the sink's log names: others belong to no micro-batch."""
    names: dict[str, None] = {}
    for entry in sorted((folder / "out" / "_spark_metadata").glob("[0-9]*")):
        for line in entry.read_text().splitlines()[1:]:
            names[json.loads(line)["path"].removeprefix("file://")] = None
    return [
        int(json.loads(line)["value"])
        for name in names
        for line in Path(name).read_text().splitlines()
    ]


def test_each_record_is_copied_once(tmp_path: Path, node: NodeProcess) -> None:
    try:
        spark_kafka.jars()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("from", 3, 1)])["from"].result()

    def send(numbers: range) -> None:
        producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
        for number in numbers:
            producer.produce("from", str(number))
        assert producer.flush(SECONDS_MAX) == 0

    def told() -> str:
        log = (tmp_path / "driver.log").read_text()
        return f"{len(copied(tmp_path))} records are copied: {log[-3000:]}"

    third = RECORDS // 3
    send(range(third))
    with copying(node.address, tmp_path):
        eventually(lambda: len(copied(tmp_path)) > 0, told, SECONDS_MAX)
    send(range(third, 2 * third))
    with copying(node.address, tmp_path) as driver:
        eventually(lambda: len(copied(tmp_path)) > third, told, SECONDS_MAX)
        node.kill()
        node.start()
        send(range(2 * third, RECORDS))
        eventually(lambda: len(copied(tmp_path)) >= RECORDS, told, SECONDS_MAX)
        assert driver.poll() is None
    assert sorted(copied(tmp_path)) == list(range(RECORDS))
