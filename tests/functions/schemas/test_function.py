"""The registry as a function: events in, answers and rights as nodes have them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.security.acls import stored_acl
from tidelog_core.metadata.store import Check, Write
from tidelog_core.security.acl import Acl, AclOperation, AclPermission, PatternType, ResourceType
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.invocation import FunctionSettings
from tidelog_functions.schemas import serving
from tidelog_functions.schemas.serving import SchemasFunction

from tests.support.admin_calls import CALLER, an_event
from tests.support.waiting import SECONDS_MAX

INT, TEXT = {"schema": '"int"'}, {"schema": '"string"'}
WITH_ACLS = parse_config(NodeConfig, {"authorizer.class.name": "tidelog.acl"})
Ask = Callable[..., tuple[int, Any]]


@contextmanager
def opened(
    folder: Path, *, config: NodeConfig | None = None, has_cluster: bool = True
) -> Iterator[Any]:
    """Give a function that asks for a path, and the cluster."""
    settings = FunctionSettings(
        metadata_url=f"sqlite://{folder}/metadata.db",
        objects_url=f"file://{folder}/objects",
        node_config=config or NodeConfig(),
    )
    (folder / "objects").mkdir(exist_ok=True)
    with asyncio.Runner() as runner:
        cluster = AdminCluster.open(settings)
        function = SchemasFunction(cluster, requires_identity=True)
        if has_cluster:
            runner.run(cluster.store.commit([put(Cluster(cluster_id="c1"))]))

        def ask(method: str, path: str, body: object = None, **more: Any) -> tuple[int, Any]:
            event = {**an_event(method, f"/schema-registry{path}", body), **more}
            answer = runner.run(function.handle(event, seconds_max=SECONDS_MAX))
            assert answer["headers"]["content-type"].endswith("json")
            return answer["statusCode"], json.loads(answer["body"])

        def allow(resource_type: ResourceType, name: str, operation: AclOperation) -> None:
            acl = Acl(
                resource_type,
                PatternType.LITERAL,
                name,
                CALLER,
                "*",
                operation,
                AclPermission.ALLOW,
            )
            runner.run(cluster.store.commit([put(stored_acl(acl))]))

        try:
            yield ask, allow
        finally:
            runner.run(cluster.close())


def test_schemas_are_registered_found_and_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as (ask, _):
        assert ask("GET", "/subjects") == (200, [])
        status, made = ask("POST", "/subjects/:.x:a b/versions", INT)
        assert (status, made["id"], made["version"]) == (200, 1, 1)
        assert ask("GET", "/subjects") == (200, [":.x:a b"])
        assert ask("POST", "/subjects/:.x:a b/versions", TEXT)[0] == 409
        assert ask("PUT", "/config", {"compatibility": "FULL"}) == (200, {"compatibility": "FULL"})
        assert ask("GET", "/schemas/ids/1/schema")[0] == 404  # It is of the other context.
        assert ask("GET", "/nothing")[0] == 404
        assert ask("DELETE", "/subjects/:.x:a b") == (200, [1])
    # Another environment has what the first one wrote, and the bucket has its journal.
    with opened(tmp_path, has_cluster=False) as (ask, _):
        assert ask("GET", "/subjects?deleted=true")[0] == 404
        assert ask("GET", "/subjects", rawQueryString="deleted=true") == (200, [":.x:a b"])
        assert len(list((tmp_path / "objects/c1/schemas").iterdir())) == 4


def test_callers_need_an_identity_and_the_acls_of_nodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, config=WITH_ACLS) as (ask, allow):
        nobody = {"requestContext": {"http": {"method": "GET"}, "stage": "$default"}}
        assert ask("GET", "/subjects", **nobody) == (
            401,
            {"error_code": 401, "message": "Unauthorized"},
        )
        assert ask("GET", "/subjects") == (200, [])
        assert ask("POST", "/subjects/t-value/versions", INT)[1]["error_code"] == 40301
        allow(ResourceType.TOPIC, "t", AclOperation.WRITE)
        with caplog.at_level(logging.INFO):
            assert ask("POST", "/subjects/t-value/versions", INT)[0] == 200
        assert ask("POST", "/subjects/other/versions", INT)[1]["error_code"] == 40301
        assert ask("PUT", "/config/t-value", {"compatibility": "NONE"})[0] == 403
        assert ask("GET", "/subjects") == (200, ["t-value"])  # Write implies Describe.
        allow(ResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER)
        assert ask("POST", "/subjects/other/versions", INT)[0] == 200
    (line,) = [one for one in caplog.records if one.message == "schema registry changed"]
    shown = line.__dict__
    assert (shown["principal"], shown["operation"]) == (CALLER, "RegisterSchema")
    assert (shown["subject"], shown["change"]["id"]) == ("t-value", "1")


def test_what_cannot_be_answered_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, has_cluster=False) as (ask, _):
        status, said = ask("GET", "/subjects")
        assert (status, said["error_code"]) == (500, 50001)
        assert "there is no cluster yet" in said["message"]
        assert ask("GET", "/subjects", version="1.0")[0] == 400
        assert ask("POST", "/subjects/a/versions", body="x" * (2 << 20))[0] == 413
    with opened(tmp_path) as (ask, _):
        assert ask("POST", "/subjects/a/versions", INT)[0] == 200
        monkeypatch.setattr(serving, "ANSWER_SIZE_BYTES_MAX", 50)
        assert ask("GET", "/schemas")[0] == 422


async def test_a_change_that_does_not_end_in_time_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "objects").mkdir()
    cluster = AdminCluster.open(
        FunctionSettings(
            metadata_url=f"sqlite://{tmp_path}/metadata.db",
            objects_url=f"file://{tmp_path}/objects",
            node_config=NodeConfig(),
        )
    )
    function = SchemasFunction(cluster, requires_identity=True)
    await cluster.store.commit([put(Cluster(cluster_id="c1"))])
    has_begun = asyncio.Event()

    async def hang(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        del writes, checks
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster.store, "commit", hang)
    event = an_event("POST", "/schema-registry/subjects/a/versions", INT)
    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(function.handle(event, seconds_max=600))
        async with asyncio.timeout(60):
            await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (line,) = [one for one in caplog.records if one.message == "change refused"]
    shown = line.__dict__
    assert (shown["operation"], shown["subject"], shown["error_code"]) == (
        "RegisterSchema",
        "a",
        50002,
    )
    await cluster.close()


INVOKE = """
import json, sys

class Context:
    def get_remaining_time_in_millis(self):
        return 20_000

from tidelog_functions.schemas.handler import handle

for line in sys.stdin:
    print(json.dumps(handle(json.loads(line), Context())), flush=True)
unwanted = {"boto3", "aioboto3", "botocore", "aiohttp", "obstore", "numpy", "pyarrow", "fastavro"}
print(json.dumps(sorted(unwanted & sys.modules.keys())))
"""


def test_a_warm_function_answers_one_event_after_the_other(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    events = (
        an_event("POST", "/schema-registry/subjects/a/versions", INT),
        an_event("GET", "/schema-registry/subjects/a/versions"),
    )
    done = subprocess.run(
        [sys.executable, "-c", INVOKE],
        input="\n".join(map(json.dumps, events)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "TIDELOG_METADATA": f"sqlite://{tmp_path}/metadata.db",
            "TIDELOG_OBJECTS": f"file://{tmp_path}/objects",
        },
    )
    assert done.returncode == 0, done.stderr
    made, listed, unwanted = map(json.loads, done.stdout.splitlines())
    assert json.loads(made["body"])["id"] == 1
    assert json.loads(listed["body"]) == [1]
    assert unwanted == []  # A cold start pays for every module that is loaded.
