"""A page whose name resolves to this machine reads nothing of the node's HTTP servers."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_node.http_serving.known_hosts import KnownHosts
from tidelog_node.settings import parse_settings

from tests.support.node_process import NodeProcess
from tools.ports import free_port


class Transport(asyncio.Transport):
    """A connection to one address."""

    def __init__(self, *address: str | int) -> None:
        super().__init__({"sockname": address})


LOOPBACK = Transport("127.0.0.1", 8081)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8081",
        "localhost.:8081",
        "127.0.0.1:8081",
        "[::1]:8081",
        "[::1]",
        "10.1.2.3:8081",
        "broker.example:8081",
        "BROKER.example",
    ],
)
def test_names_of_the_node_and_addresses_are_allowed(host: str) -> None:
    assert KnownHosts.of(["Broker.example"]).refusal(LOOPBACK, [host]) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8081",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "",
        "[evil.example]:80",
        "evil.example@localhost",
        "localhost\x00",
        "\udcff",
        "x" * 8_000,
    ],
)
def test_other_names_are_refused(host: str) -> None:
    refusal = KnownHosts.of([""]).refusal(LOOPBACK, [host])
    assert refusal is not None
    assert len(refusal) < 800


def test_one_wrong_name_among_several_is_refused() -> None:
    hosts = KnownHosts.of([])
    assert hosts.refusal(LOOPBACK, ["localhost", "evil.example"])
    assert hosts.refusal(LOOPBACK, []) is None, "no browser leaves the header out"
    assert hosts.refusal(None, ["evil.example"]), "a connection that is gone is not trusted"


def test_only_connections_over_loopback_are_checked() -> None:
    hosts = KnownHosts.of([])
    assert hosts.refusal(Transport("10.0.0.7", 8081), ["node7.internal"]) is None
    for address in ("::1", "::ffff:127.0.0.1", "127.8.8.8"):
        assert hosts.refusal(Transport(address, 8081, 0, 0), ["node7.internal"])
    assert KnownHosts.of(["*"]).refusal(LOOPBACK, ["evil.example"]) is None


def test_the_settings_have_the_advertised_host_and_further_names() -> None:
    given = ["--http-allowed-hosts", " A.example, ,b.example", "--advertised-host", "kafka.example"]
    names = parse_settings(given, {}).host_names
    assert {"a.example", "b.example", "kafka.example", "127.0.0.1"} <= set(names)
    assert "" not in names
    environment = {"TIDELOG_HTTP_ALLOWED_HOSTS": "*"}
    assert parse_settings([], environment).http_allowed_hosts == ("*",)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder: Path = tmp_path_factory.mktemp("hosts")
    registry_port = free_port()
    arguments = ("--http-port", "0", "--registry-port", str(registry_port))
    arguments += ("--http-allowed-hosts", "proxy.example")
    with NodeProcess(folder / "node", arguments=arguments) as running:
        running.registry_port = registry_port  # type: ignore[attr-defined]
        yield running


def status(port: int, path: str, host: str) -> int:
    """Return the status of the answer to a request for a host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_node_refuses_a_rebound_name_at_both_of_its_http_ports(node: NodeProcess) -> None:
    http_port = int(node.http_address.rpartition(":")[2])
    registry_port: int = node.registry_port  # type: ignore[attr-defined]
    for port, path in (
        (http_port, "/livez"),
        (http_port, "/metrics"),
        (registry_port, "/subjects"),
    ):
        assert status(port, path, "evil.example") == 403
        assert status(port, path, f"localhost:{port}") == 200
        assert status(port, path, f"127.0.0.1:{port}") == 200
        assert status(port, path, "proxy.example") == 200
    assert status(http_port, "/nothing", "evil.example") == 403, "nor which pages there are"
