"""franz-go produces once, and copies a topic exactly once, while the client and the node are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ecosystem.copying import (
    CopyClient,
    copy_while_both_are_killed,
    produce_while_the_node_is_killed,
)
from tests.support.node_process import NodeProcess
from tools import franz_go_copy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def client(tmp_path: Path) -> CopyClient:
    program = franz_go_copy.COPY.command()
    if program is None:
        pytest.skip("franz-go is not built: run `make test-ecosystem`")
    return CopyClient((str(program),), tmp_path / "client.log")


def test_an_idempotent_producer_stores_each_record_once(
    client: CopyClient, node: NodeProcess
) -> None:
    produce_while_the_node_is_killed(client, node, count=300_000)


def test_a_group_copies_each_record_once(client: CopyClient, node: NodeProcess) -> None:
    copy_while_both_are_killed(client, node, count=30_000)
