"""What a node refuses to start with, and who wins where two claim the same."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import BROKER_COLLECTION, Broker
from tidelog_core.metadata.store import Item
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import register_broker
from tidelog_node.settings import parse_settings

from tests.support.node_process import READY_SECONDS_MAX, NodeProcess
from tools.ports import free_port


def stored(path: Path, collection: str) -> list[Item]:
    async def read() -> list[Item]:
        store = SqliteMetadataStore(path)
        try:
            return await store.list(collection)
        finally:
            await store.close()

    return asyncio.run(read())


def refusal(node: NodeProcess) -> str:
    """Start the node, which must not come up, and return the reason it logged."""
    with pytest.raises(RuntimeError, match="node ended before it was ready"):
        node.start()
    return node.log.splitlines()[-1]


def test_a_port_that_is_taken_is_named_and_nothing_is_registered(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        reason = refusal(NodeProcess(tmp_path / "node", port=port))
    assert f"cannot listen on '127.0.0.1' port {port}: Address already in use" in reason
    assert stored(tmp_path / "node/metadata.db", BROKER_COLLECTION) == []


def test_of_nodes_that_start_together_on_one_port_only_one_is_registered(tmp_path: Path) -> None:
    port = free_port()
    nodes = [
        NodeProcess(
            tmp_path / f"node-{broker_id}",
            broker_id=broker_id,
            port=port,
            metadata_store=f"sqlite://{tmp_path}/metadata.db",
        )
        for broker_id in (1, 2, 3)
    ]
    processes = [
        subprocess.Popen(
            node.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for node in nodes
    ]
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while sum(process.poll() == 1 for process in processes) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (winner,) = (n for n, p in zip(nodes, processes, strict=True) if p.poll() is None)
        process = processes[nodes.index(winner)]
        assert process.stdout is not None
        assert process.stdout.readline()
        registered = stored(tmp_path / "metadata.db", BROKER_COLLECTION)
        assert [Broker.from_item(item).broker_id for item in registered] == [winner.broker_id]
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=30)


def test_a_second_node_of_the_same_id_does_not_start(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/metadata.db"
    with NodeProcess(tmp_path / "first", metadata_store=store) as first:
        reason = refusal(NodeProcess(tmp_path / "second", metadata_store=store))
        assert f"broker 1 of this cluster runs already, at {first.address}" in reason
        assert first.process is not None
        assert first.process.poll() is None


async def test_a_node_whose_registration_is_replaced_stops(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:

        async def replace() -> None:
            store = SqliteMetadataStore(tmp_path / "node/metadata.db")
            await register_broker(
                store,
                broker_id=1,
                incarnation=uuid4(),
                endpoints=plaintext_endpoints("127.0.0.1", 1),
                rack=None,
            )
            await store.close()

        await replace()
        assert node.process is not None
        assert node.process.wait(60) == 1
        node.wait_logged("broker 1 was started again, at 127.0.0.1:1")


def test_a_store_that_does_not_know_the_directorys_cluster_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    NodeProcess(tmp_path / "node").start().stop()
    other = NodeProcess(tmp_path / "node", metadata_store=f"sqlite://{tmp_path}/other.db")
    reason = refusal(other)
    assert "the metadata store knows of none" in reason
    assert "docs/restore.md" in reason
    assert stored(tmp_path / "other.db", "cluster") == []


def test_a_directory_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    held = LogDirectories(tmp_path / "node")
    reason = refusal(NodeProcess(tmp_path / "node"))
    held.close()
    assert f"another node uses the data directory {tmp_path / 'node'}" in reason
    assert "stop that node" in reason


def test_a_directory_of_another_cluster_or_broker_is_refused(tmp_path: Path) -> None:
    NodeProcess(tmp_path / "node").start().stop()
    reason = refusal(NodeProcess(tmp_path / "node", broker_id=7))
    assert "is not of broker 7 of cluster" in reason
    assert "or another data directory" in reason
    NodeProcess(tmp_path / "other").start().stop()
    store = f"sqlite://{tmp_path}/other/metadata.db"
    reason = refusal(NodeProcess(tmp_path / "node", metadata_store=store))
    assert re.search("is not of broker 1 of cluster", reason)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "0:0:0:0:0:0:0:0", "0.0"])
def test_a_wildcard_however_written_needs_an_advertised_host(host: str) -> None:
    with pytest.raises(InvalidConfig, match="advertised_host is required"):
        parse_settings(["--host", host], {})
    settings = parse_settings(["--host", host, "--advertised-host", "node.example"], {})
    assert settings.listeners.clients[0].advertised_host == "node.example"


def test_a_host_is_not_taken_for_a_wildcard() -> None:
    for host in ("127.0.0.1", "::1", "node.example", "fd00::", "10.0.0.0"):
        (listener,) = parse_settings(["--host", host], {}).listeners.clients
        assert listener.advertised_host == host


def test_a_node_says_that_it_is_open_to_other_machines(tmp_path: Path) -> None:
    port = free_port()
    config = {
        "listeners": f"PLAINTEXT://0.0.0.0:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    with NodeProcess(tmp_path / "node", port=port, config=config) as node:
        node.wait_logged("listener is open to everyone who can reach it")
    with NodeProcess(tmp_path / "other") as node:
        assert "open to everyone" not in node.log
