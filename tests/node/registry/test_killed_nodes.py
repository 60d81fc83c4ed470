"""Four writers on the registries of three nodes that are killed: ids stay dense, and writes go on."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tidelog_core.metadata.records import Cluster, cluster_key
from tidelog_core.metadata.schema_records import SchemaText
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.restoration.schemas import restore_schemas

from tests.contracts.schema_registry import record, require_whole
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.ports import free_port

NODES, WRITERS, SCHEMAS = 3, 4, 120
KILLED_AFTER = (60, 160, 260, 360)  # registrations of all writers together


class Writer:
    """Registers schemas in an order of its own, at whichever node answers."""

    def __init__(self, number: int, ports: list[int]) -> None:
        self._chance = random.Random(f"writer {number}")
        self._ports = ports
        self.ids: dict[str, int] = {}
        self.stall_seconds_max = 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        work = list(range(SCHEMAS))
        self._chance.shuffle(work)
        for number in work:
            text = record("R", *(f"f{i}" for i in range(number))).text
            began = time.monotonic()
            self.ids[text] = self._register(f"subject-{number % 4}", text)
            self.stall_seconds_max = max(self.stall_seconds_max, time.monotonic() - began)

    def _register(self, subject: str, text: str) -> int:
        while True:
            port = self._chance.choice(self._ports)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                headers = {"Content-Type": "application/json"}
                body = json.dumps({"schema": text})
                connection.request("POST", f"/subjects/{subject}/versions", body, headers)
                response = connection.getresponse()
                found = json.loads(response.read())
            except OSError:
                time.sleep(0.01)  # The node is killed, or not back yet.
                continue
            except http.client.HTTPException:
                continue
            finally:
                connection.close()
            assert response.status == 200, found
            return int(found["id"])


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    with ExitStack() as stack:
        running = []
        for number in range(1, NODES + 1):
            arguments = ("--registry-port", str(free_port()))
            node = NodeProcess(
                tmp_path / f"node-{number}",
                broker_id=number,
                metadata_store=f"sqlite://{tmp_path}/metadata.db",
                object_store=f"file://{tmp_path}/objects",
                arguments=arguments,
            )
            running.append(stack.enter_context(node))
        yield running


@pytest.mark.slow
async def test_ids_stay_dense_and_writes_go_on(nodes: list[NodeProcess], tmp_path: Path) -> None:
    ports = [int(node.arguments[1]) for node in nodes]
    writers = [Writer(number, ports) for number in range(WRITERS)]
    for kill, count in enumerate(KILLED_AFTER):
        eventually(lambda: sum(len(one.ids) for one in writers) >= count)  # noqa: B023
        node = nodes[kill % NODES]
        if kill >= NODES:
            node.wait_ready()
        node.kill()
        assert any(one.thread.is_alive() for one in writers)
        node.spawn()
    for writer in writers:
        writer.thread.join(120)
        assert not writer.thread.is_alive()
    given = [writer.ids for writer in writers]
    assert all(ids == given[0] for ids in given)
    assert sorted(given[0].values()) == list(range(1, SCHEMAS + 1))
    stalls = [round(writer.stall_seconds_max, 2) for writer in writers]
    print("longest stalls of the writers in seconds:", stalls)
    assert max(stalls) <= 30, stalls
    for node in nodes:
        node.wait_ready()
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    assert await require_whole(store) == SCHEMAS
    await require_restored(tmp_path, store, given[0])
    await store.close()


async def require_restored(folder: Path, store: SqliteMetadataStore, ids: dict[str, int]) -> None:
    """Check that the bucket alone has every schema that was answered, and the same items."""
    item = await store.get(cluster_key())
    assert item is not None
    objects = FolderObjectStore(folder / "objects")
    lost = SqliteMetadataStore(folder / "restored.db")
    found = await restore_schemas(objects, Cluster.from_item(item).cluster_id, lost)
    assert (found.schema_count, found.problems) == (SCHEMAS, ())
    assert await require_whole(lost) == SCHEMAS
    texts = {
        SchemaText.from_item(one).text: SchemaText.from_item(one).schema_id
        for one in await lost.list("schema-text:.")
    }
    assert texts == ids
    for collection in ("schema-context", "schema-subject", "schema-identity:.", "schema-text:."):
        bodies = [[(one.id, one.body) for one in await s.list(collection)] for s in (store, lost)]
        assert bodies[0] == bodies[1]
    await lost.close()
