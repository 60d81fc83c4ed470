"""Each denial is logged once; a dry run denies nothing and logs the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.authorization import Client
from tidelog_node.authorization import denial_log as denial_log_module
from tidelog_node.authorization.denial_log import (
    LINES_MAX,
    MINUTE_SECONDS,
    NAME_SIZE_MAX,
    DenialLog,
)

from tests.support.acl_rules import CLIENT, WITH_ACLS, leave_to_admin
from tests.support.batches import batch
from tests.support.clock import Clock
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

ALICE = Client(("User:alice",), "10.0.0.1")
READ, TOPIC = AclOperation.READ, ResourceType.TOPIC


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = WITH_ACLS | {"authorizer.dry.run": "true"}
    with NodeProcess(tmp_path_factory.mktemp("dry") / "node", config=config) as process:
        yield process


def test_nothing_is_denied_and_the_log_has_what_would_be(node: NodeProcess) -> None:
    admin = Peer("tidelog", node.port)
    admin.create_topic("orders")
    leave_to_admin(admin)
    client = Peer("tidelog", node.port, address=CLIENT)
    for _ in range(2):
        assert client.produce("orders", batch(1))["error_code"] == "none"
        found = client.fetch("orders", 0)["responses"][0]["partitions"][0]
        assert (found["error_code"], bool(found["records"])) == ("none", True)
        listed = client.call("metadata", 8, topics=None, include_topic_authorized_operations=True)
        (topic,) = [one for one in listed["topics"] if one["name"] == "orders"]
        assert topic["topic_authorized_operations"] == 0  # its rights are shown as they are
    client.call("init_producer_id", 4, transactional_id=None)
    client.call("list_groups", 4, states_filter=[])
    client.close()
    admin.close()
    node.wait_logged("TOPIC of any name")  # the last of them, by InitProducerId
    lines = [line for line in node.log.splitlines() if "would be denied" in line]
    for operation, resource in (
        ("WRITE", "TOPIC orders"),
        ("READ", "TOPIC orders"),
        ("DESCRIBE", "TOPIC orders"),
        ("WRITE", "TOPIC of any name"),
    ):
        about = [line for line in lines if operation in line and resource in line]
        assert len(about) == 1, lines
    assert not [line for line in lines if "CLUSTER" in line]  # a topic's right stands in for it


def test_what_is_left_out_of_a_list_is_no_denial(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", config=WITH_ACLS) as node:
        admin = Peer("tidelog", node.port)
        admin.create_topic("orders")
        leave_to_admin(admin)
        client = Peer("tidelog", node.port, address=CLIENT)
        assert client.call("metadata", 8, topics=None)["topics"] == []
        assert "denied" not in node.log_path.read_text()
        for _ in range(2):
            client.call("metadata", 8, topics=[{"name": "orders"}])
            assert not client.fetch("orders", 0)["responses"][0]["partitions"][0]["records"]
        client.close()
        admin.close()
    # The node has stopped, and all is written.
    lines = [line for line in node.log_path.read_text().splitlines() if "denied" in line]
    assert len(lines) == 2, lines
    assert all("TOPIC orders" in line and "User:ANONYMOUS" in line for line in lines)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.message == "denied"]


def test_the_lines_of_a_minute_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    caplog.set_level(logging.WARNING)
    log = DenialLog(now=lambda: clock() / 1000)
    for number in range(LINES_MAX + 20):
        log.note(ALICE, READ, TOPIC, f"t-{number}")
        log.note(ALICE, READ, TOPIC, "t-0")
    assert len(lines_of(caplog)) == LINES_MAX
    clock.now_ms += int(MINUTE_SECONDS * 1000)
    log.note(ALICE, READ, TOPIC, f"t-{LINES_MAX}")
    assert lines_of(caplog)[-1].unlogged_count == 20


def test_what_is_known_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denial_log_module, "NOTED_MAX", 5)
    log = DenialLog()
    for number in range(12):
        log.note(ALICE, READ, TOPIC, f"t-{number}")
        assert len(log._noted) <= 5
    log.note(ALICE, READ, TOPIC, "x" * 32_000)
    assert lines_of(caplog)[-1].resource == f"TOPIC {'x' * NAME_SIZE_MAX}"
