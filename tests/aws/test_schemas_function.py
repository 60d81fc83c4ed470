"""The registry's function and nodes' registries on one DynamoDB table and one bucket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.invocation import FunctionSettings, NodeConfig
from tidelog_functions.schemas.serving import SchemasFunction

from tests.aws.test_dynamodb_store import new_table, opened
from tests.contracts.schema_registry import record, require_whole
from tests.support.admin_calls import an_event
from tools.ports import free_port


def asked(method: str, path: str, body: Any = None) -> dict[str, Any]:
    return an_event(method, f"/schema-registry{path}", body)


@pytest.mark.usefixtures("aws_credentials")
async def test_functions_and_nodes_write_one_registry(
    dynamodb_local_endpoint: str, tmp_path: Path
) -> None:
    table = await new_table(dynamodb_local_endpoint)
    url = f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_local_endpoint}"
    settings = FunctionSettings(
        metadata_url=url, objects_url=f"file://{tmp_path}", node_config=NodeConfig()
    )
    cluster = AdminCluster.open(settings)
    function = SchemasFunction(cluster, requires_identity=True)
    async with opened(table, dynamodb_local_endpoint) as store:
        await store.commit([put(Cluster(cluster_id="c1"))])
        journal = RegistryJournal(store, FolderObjectStore(tmp_path), "c1")
        node = SchemaRegistry(store, committer=journal)

        async def by_function(*fields: str) -> int:
            body = {"schema": record("R", *fields).text}
            event = asked("POST", "/subjects/a/versions", body)
            answer = await function.handle(event, seconds_max=60)
            assert answer["statusCode"] == 200, answer
            return int(json.loads(answer["body"])["id"])

        async def by_node(*fields: str) -> int:
            return (await node.register("a", Wanted(record("R", *fields)))).schema_id

        assert await by_function("x") == 1
        assert await by_node("x") == 1
        assert await by_node("x", "y") == 2
        # Both at once: the number of an entry is taken once.
        assert await asyncio.gather(by_function("x"), by_node("x", "y")) == [1, 2]
        assert sorted(await asyncio.gather(by_function("z"), by_node("w"))) == [3, 4]
        assert await require_whole(store) == 4
    await cluster.close()


@pytest.mark.usefixtures("aws_credentials")
async def test_a_table_that_is_away_is_an_error_of_the_store(tmp_path: Path) -> None:
    settings = FunctionSettings(
        metadata_url=f"dynamodb://t?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}",
        objects_url=f"file://{tmp_path}",
        node_config=NodeConfig(),
    )
    cluster = AdminCluster.open(settings)
    function = SchemasFunction(cluster, requires_identity=True)
    answer = await function.handle(asked("GET", "/subjects"), seconds_max=60)
    assert (answer["statusCode"], json.loads(answer["body"])["error_code"]) == (500, 50001)
    await cluster.close()
