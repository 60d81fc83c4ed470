"""``tidelog restore`` brings the schema registry back: a node is killed, and its metadata lost."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.ports import free_port


def asked(port: int, method: str, path: str, body: Any = None) -> Any:
    """Return the answer of the registry at a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"})
    response = connection.getresponse()
    found = json.loads(response.read())
    assert response.status == 200, found
    connection.close()
    return found


def listens(port: int) -> bool:
    """Return whether somebody listens at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def record(*fields: str) -> dict[str, str]:
    made = [{"name": one, "type": "int", "default": 0} for one in fields]
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": made})}


@pytest.mark.slow  # It starts two nodes; tests/core/schema_registry/journal/test_journal.py runs always.
def test_a_schema_that_was_answered_survives_the_loss_of_node_and_metadata(
    tmp_path: Path,
) -> None:
    def node(name: str, port: int) -> NodeProcess:
        return NodeProcess(
            tmp_path / name,
            broker_id=1,
            metadata_store=f"sqlite://{tmp_path}/{name}.db",
            object_store=f"file://{tmp_path}/objects",
            arguments=("--registry-port", str(port)),
        )

    port = free_port()
    with node("first", port) as first:
        asked(port, "PUT", "/config/a-value", {"compatibility": "FULL"})
        for number, fields in enumerate([("x",), ("x", "y"), ("x", "y", "z")], 1):
            found = asked(port, "POST", "/subjects/a-value/versions", record(*fields))
            assert found["id"] == number
        asked(port, "DELETE", "/subjects/a-value/versions/1")
        first.kill()  # -9, right behind an answer
        before = (tmp_path / "first.db").exists()
    assert before
    bucket, metadata = f"file://{tmp_path}/objects", f"sqlite://{tmp_path}/second.db"
    dry = called("restore", "--from", bucket, "--dry-run", "--json")
    assert json.loads(dry.out)["schemas"] == {"subjects": 1, "schemas": 3}
    called("restore", "--from", bucket, "--metadata", metadata)
    port = free_port()
    with node("second", port):
        eventually(lambda: listens(port))  # once the journal is open
        assert asked(port, "GET", "/subjects/a-value/versions?deleted=true") == [1, 2, 3]
        assert asked(port, "GET", "/subjects/a-value/versions") == [2, 3]
        assert asked(port, "GET", "/schemas/ids/3")["schema"]
        assert asked(port, "GET", "/config/a-value") == {"compatibilityLevel": "FULL"}
        assert asked(port, "POST", "/subjects/b-value/versions", record("n"))["id"] == 4
