"""KafkaJS produces once, and copies a topic exactly once, while the client and the node are killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ecosystem.copying import (
    CopyClient,
    copy_while_both_are_killed,
    produce_while_the_node_is_killed,
)
from tests.support.node_process import NodeProcess
from tools import kafkajs

PROGRAM = Path(__file__).with_name("kafkajs_copy.js")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def client(tmp_path: Path) -> CopyClient:
    program, modules = shutil.which("node"), kafkajs.modules()
    if program is None or modules is None:
        pytest.skip("KafkaJS is not installed: run `make tools`")
    return CopyClient(
        (program, str(PROGRAM)), tmp_path / "client.log", environment={"NODE_PATH": str(modules)}
    )


def test_an_idempotent_producer_stores_each_record_once(
    client: CopyClient, node: NodeProcess
) -> None:
    produce_while_the_node_is_killed(client, node, count=100_000)


def test_a_group_copies_each_record_once(client: CopyClient, node: NodeProcess) -> None:
    """It ends when the node fails it in the middle of a transaction, and is started again."""
    copy_while_both_are_killed(client, node, count=30_000, may_end=True)
