"""One node for all tests of commands that talk to nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.node_process import NodeProcess

CONFIG = {
    "remote.task.interval.ms": "50",
    "log.segment.bytes": "300000",
}


@pytest.fixture(scope="session")
def cli_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A running node that all of these tests share; each uses topics of its own."""
    with NodeProcess(tmp_path_factory.mktemp("cli") / "node", config=CONFIG) as node:
        yield node


@pytest.fixture
def bootstrap(cli_node: NodeProcess) -> str:
    """The shared node's address."""
    return cli_node.address


@pytest.fixture(scope="session")
def cli_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, ...]]:
    """Two running nodes of one cluster that these tests share; each uses topics of its own."""
    folder = tmp_path_factory.mktemp("cli-cluster")
    nodes = [
        NodeProcess(
            folder / f"node-{number}",
            broker_id=number,
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
            config={**CONFIG, "metadata.poll.interval.ms": "50"},
        )
        for number in (1, 2)
    ]
    with nodes[0] as first, nodes[1] as second:
        yield first, second
