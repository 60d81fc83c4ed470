"""What probes are told of a node that starts, serves, is fenced, or stops."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_node.settings import parse_settings
from tidelog_node.wiring import Addresses, run_node

from tests.support.http_pages import get, readiness, scrape
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.ports import free_ports

SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("probes")
    with NodeProcess(folder / "node", arguments=("--http-port", "0")) as running:
        yield running


def test_a_node_that_serves_is_alive_and_ready(node: NodeProcess) -> None:
    assert get(node.http_address, "/livez").body == b"ok\n"
    status, body = readiness(node.http_address)
    assert (status, body["status"], body["broker_id"], body["faults"]) == (200, "ready", 1, [])
    assert list(body["checks"]) == ["phase", "metadata_store", "logs", "disk", "lease"]
    assert all(check["ok"] for check in body["checks"].values())


def test_the_page_of_metrics_says_which_node_it_is(node: NodeProcess) -> None:
    scraped = scrape(node.http_address)
    assert scraped.labels("tidelog_application_build", "broker_id") == {"1"}
    assert scraped.value("tidelog_ready") == 1
    assert scraped.value("tidelog_application_uptime_seconds") > 0
    assert scraped.value("process_resident_memory_bytes") > 1_000_000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/readyz", 405), ("HEAD", "/livez", 200)],
)
def test_other_requests_are_refused(node: NodeProcess, method: str, path: str, status: int) -> None:
    assert get(node.http_address, path, method=method).status == status


def test_a_fenced_node_is_alive_but_not_ready(node: NodeProcess) -> None:
    """The metadata store's files are taken away, and put back."""
    there, away = node.data_dir, node.data_dir.parent / "away"
    away.mkdir()
    names = [path.name for path in there.glob("metadata.db*")]
    try:
        for name in names:
            (there / name).rename(away / name)
        # At first only the store is known to be away, or only the lease of a busy machine.
        eventually(
            lambda: (
                not any(
                    wait_for_status(node, 503)["checks"][check]["ok"]
                    for check in ("lease", "metadata_store")
                )
            ),
            "neither is well",
        )
        body = wait_for_status(node, 503)
        assert get(node.http_address, "/livez").status == 200
        assert [fault["name"] for fault in body["faults"]] == ["metadata-store-lost"]
        scraped = scrape(node.http_address)
        assert scraped.value("tidelog_ready") == 0
        assert scraped.value("tidelog_ready_check", check="lease") == 0
        assert scraped.value("tidelog_faults", fault="metadata-store-lost") == 1
    finally:
        for name in names:
            (away / name).rename(there / name)
    wait_for_status(node, 200)


def wait_for_status(node: NodeProcess, wanted: int) -> dict[str, dict[str, dict[str, object]]]:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        status, body = readiness(node.http_address)
        if status == wanted:
            return dict(body)
        assert time.monotonic() < deadline, body
        time.sleep(0.02)


async def test_a_node_is_not_ready_before_it_serves_nor_when_it_stops(tmp_path: Path) -> None:
    port = free_ports(2)
    arguments = ["--data-dir", str(tmp_path / "node"), "--port", str(port)]
    settings = parse_settings([*arguments, "--http-port", str(port + 1)], {})
    stop, served = asyncio.Event(), asyncio.Event()

    def on_ready(addresses: Addresses) -> None:
        assert addresses.http == f"127.0.0.1:{port + 1}"
        served.set()

    running = asyncio.create_task(run_node(settings, stop=stop, on_ready=on_ready))
    while (first := await ask_readyz(port + 1)) is None:
        assert not running.done()
    assert first["status"] == "not ready"
    assert first["checks"]["phase"] == {"ok": False, "detail": "starting"}
    await asyncio.wait_for(served.wait(), SECONDS_MAX)
    while_serving = await ask_readyz(port + 1)
    assert while_serving is not None
    assert while_serving["status"] == "ready"
    stop.set()
    last = await ask_readyz(port + 1)
    assert last is not None
    assert last["checks"]["phase"] == {"ok": False, "detail": "draining"}
    await running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port + 1), timeout=60).close()


async def ask_readyz(port: int) -> dict[str, dict[str, object]] | None:
    """Return the body, ``None`` if the port does not answer yet."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return None
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read(-1)
    writer.close()
    body: dict[str, dict[str, object]] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return body


def test_a_node_takes_a_free_port_if_it_may_and_the_usual_one_is_in_use(
    node: NodeProcess, tmp_path: Path
) -> None:
    """Two clusters that start at once both find the usual port free."""
    taken = node.http_address.rpartition(":")[2]
    arguments = ("--http-port", taken, "--http-port-or-free")
    with NodeProcess(tmp_path / "other", arguments=arguments) as other:
        assert other.http_address.rpartition(":")[2] not in ("", "0", taken)
        status, _ = readiness(other.http_address)
        assert status == 200


def test_a_port_in_use_is_named(node: NodeProcess, tmp_path: Path) -> None:
    taken = node.http_address.rpartition(":")[2]
    other = NodeProcess(tmp_path / "other", arguments=("--http-port", taken))
    with pytest.raises(RuntimeError, match=f"cannot listen on '127.0.0.1' port {taken} for HTTP"):
        other.start()
