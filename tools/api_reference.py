"""Writes ``docs/apis.md`` from a node's answer: ``python -m tools.api_reference``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidelog.wire.connection import Address
from tidelog.wire.opening import open_connection
from tidelog_core.security.operations import OPERATIONS, ApiNeeds, Need, Unmet, When

from tools.places import ROOT
from tools.ports import free_port

PAGE = ROOT / "docs" / "apis.md"
_BEGIN = """\
# APIs

The APIs of Kafka's protocol that a node serves, with their versions, and what a client must be
allowed where the nodes have an authorizer ([security.md](security.md#say-who-may-do-what)). The
rights are Kafka's. `make docs` generates this page from a node's answer to ApiVersions and from the
table that authorization uses.

| key | API | versions | needs |
|---:|---|---|---|
"""
# With these settings a node serves every API. Nothing is sent to the address.
ALL_APIS = {"client.metrics.otlp.endpoint": "http://127.0.0.1:4318"}
_END = """
«hidden» means that what the client may not see is left out of the answer, «withheld» that a part of
the answer is empty. In all other cases the client gets an error.

GetTelemetrySubscriptions and PushTelemetry are served only if the metrics of clients have somewhere
to go ([operations.md](operations.md#metrics-of-clients)).

APIs with keys from 20,000 on are Tidelog's own; Kafka's clients overlook them. Nodes have no APIs
of KRaft (votes, snapshots, brokers' registration and heartbeats), because the metadata store takes
their place, and none of the groups of Kafka Streams (KIP-1071): Streams applications use the
classic protocol.
"""


def api_page(versions: Mapping[int, tuple[int, int]]) -> str:
    """Return the page for a node with these versions, both ends included, by API key."""
    return "".join([_BEGIN, *(_row(key, *versions[key]) for key in sorted(versions)), _END])


def _row(key: int, first: int, last: int) -> str:
    api = OPERATIONS[key]
    return f"| {key} | {api.name} | {_range(first, last)} | {_needs(api)} |\n"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _needs(api: ApiNeeds) -> str:
    return "; ".join(_need(one) for one in api.needs) or "nothing"


def _need(need: Need) -> str:
    rights = " or ".join(
        f"{one.operation.name.replace('_', ' ').title().replace(' ', '')} on "
        f"{one.resource_type.name.lower().replace('_', ' ')}"
        for one in need.any_of
    )
    conditions = [] if need.when is When.ALWAYS else [f"if {need.when.value}"]
    if need.min_version:
        conditions.append(f"from version {need.min_version}")
    if need.unmet is not Unmet.REFUSED:
        conditions.append(f"else {need.unmet.value}")
    return f"{rights} ({', '.join(conditions)})" if conditions else rights


async def versions_of(host: str, port: int) -> Mapping[int, tuple[int, int]]:
    """Return a node's versions."""
    connection = await open_connection(Address(host, port), client_id="docs", timeout_s=10)
    try:
        return dict(connection.versions)
    finally:
        await connection.close()


def main() -> None:
    """Start a node, ask it, and write the page."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tidelog_node", "--port", str(port)]
        for setting in ALL_APIS.items():
            command += ["--set", "=".join(setting)]
        with subprocess.Popen(
            [*command, "--data-dir", Path(folder) / "data"], stdout=subprocess.PIPE
        ) as node:
            assert node.stdout is not None
            node.stdout.readline()
            PAGE.write_text(api_page(asyncio.run(versions_of("127.0.0.1", port))))
            node.terminate()


if __name__ == "__main__":
    main()
