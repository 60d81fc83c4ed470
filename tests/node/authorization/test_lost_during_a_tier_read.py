"""A client that loses its right while the tier worker reads for it gets nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.acl_rules import CLIENT, READ, WITH_ACLS, WRITE, change, leave_to_admin, rule
from tests.support.acls import TOPIC
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

NAME = "history"
CONFIGS = {"segment_bytes": "20000", "local_retention_bytes": "1", "retention_ms": "-1"}
CONFIG = {"remote.task.interval.ms": "50", "log.retention.check.interval.ms": "100"}
RECORD = b"x" * 9_000
RECORD_COUNT = 9
DEADLINE_SECONDS = 120.0
HELD_SECONDS = 0.4  # a fetch reaches the worker in some milliseconds


class Node(NamedTuple):
    """A node without the first records on its disk, and its administrator."""

    process: NodeProcess
    admin: Peer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("tier")
    stores = {
        "metadata_store": f"sqlite://{folder}/metadata.db",
        "object_store": f"file://{folder}/objects",
    }
    with NodeProcess(folder / "node", config=WITH_ACLS | CONFIG, **stores) as process:
        admin = Peer("tidelog", process.port)
        admin.create_topic(NAME, **CONFIGS)
        for _ in range(RECORD_COUNT):
            admin.produce(NAME, batch_of(RECORD))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(list((process.data_dir / f"{NAME}-0").glob("*.log"))) > 1:
            assert time.monotonic() < deadline, process.log[-3000:]
            time.sleep(0.05)
        leave_to_admin(admin)
        yield Node(process, admin)
        admin.close()


@contextmanager
def held(node: NodeProcess) -> Iterator[None]:
    """Keep the node's tier worker from doing anything."""
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    (worker,) = [
        int(pid)
        for pid in children
        if b"tidelog_node.tier.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.mark.parametrize("offset", [0, 3])
def test_the_answer_has_the_error_and_no_records(node: Node, offset: int) -> None:
    """Each offset is read once only: what was read is on the disk then."""
    change(node.admin, rule(TOPIC, READ))
    client = Peer("tidelog", node.admin.port, address=CLIENT)
    client.timeout = DEADLINE_SECONDS
    answers: list[Any] = []
    reading = threading.Thread(target=lambda: answers.append(client.fetch(NAME, offset)))
    keeps_its_right = offset == 3
    try:
        with held(node.process):
            reading.start()
            reading.join(HELD_SECONDS)
            assert reading.is_alive(), answers  # It waits for the worker.
            if not keeps_its_right:
                change(node.admin, rule(TOPIC, WRITE))
        reading.join(DEADLINE_SECONDS)
        found = answers[0]["responses"][0]["partitions"][0]
        expected = ("none", True) if keeps_its_right else ("topic_authorization_failed", False)
        assert (found["error_code"], bool(found["records"])) == expected
    finally:
        client.close()
