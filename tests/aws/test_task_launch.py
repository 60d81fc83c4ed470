"""A node as a task of ECS: the real launcher and node, by the words of the task definition.

ECS's metadata is played, and the broker ids are in DynamoDB Local.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.aws.machines import LAUNCHER, WAIT_SECONDS_MAX
from tests.aws.played_service import played
from tests.aws.stacks import FARGATE, nested_stacks
from tests.support.waiting import eventually
from tools.ports import free_port

ADDRESS = "127.0.0.1"
TOLD = {
    "TaskARN": "arn:aws:ecs:us-east-1:111122223333:task/tidelog/4a1b",
    "AvailabilityZone": "us-east-1b",
    "Containers": [{"Networks": [{"NetworkMode": "awsvpc", "IPv4Addresses": [ADDRESS]}]}],
}

# tests/aws/test_diskless_hosting.py has the small twins.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_credentials")]


def command(data_dir: Path, table: str, port: int) -> list[str]:
    """Return the container's command with what is here instead of at AWS."""
    node = nested_stacks({**FARGATE, "ClientAccess": "open"})["Nodes/Tasks"].properties("Node")
    (container,) = node["ContainerDefinitions"]
    here = {
        "--table": table,
        "--port-first": str(port),
        "--inter-broker-port-first": "0",
        "--data-dir": str(data_dir),
        "--metadata-store": f"sqlite://{data_dir}/metadata.db",
        "--object-store": f"file://{data_dir}/objects",
        "--http-port": "0",
    }
    words = []
    for word in map(str, container["Command"]):
        name, _, value = word.partition("=")
        words.append(f"{name}={here.get(name, value)}" if value else word)
    assert here.keys() <= {word.partition("=")[0] for word in words}
    return [sys.executable, str(LAUNCHER), *words]


def test_a_task_serves_and_gives_its_id_back_when_it_is_stopped(
    tmp_path: Path, dynamodb: Any, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    def owners() -> dict[str, str]:
        found = dynamodb.scan(TableName=broker_id_table, ConsistentRead=True)["Items"]
        return {item["broker_id"]["N"]: item["owner"]["S"] for item in found}

    port, log_path = free_port(), tmp_path / "log"
    with played(json.dumps(TOLD)) as (metadata, asked), log_path.open("ab") as log:
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": dynamodb_local_endpoint,
            "ECS_CONTAINER_METADATA_URI_V4": f"{metadata}/v4/4a1b-1",
            "TIDELOG_CONFIG_LOG_DISKLESS_ENABLE": "true",
        }
        task = subprocess.Popen(
            command(tmp_path, broker_id_table, port),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            eventually(
                lambda: "tidelog node 1001 ready" in log_path.read_text(), log_path.read_text
            )
            assert owners() == {"1001": "4a1b/0"}
            assert asked == ["/v4/4a1b-1/task"]
            bootstrap = {"bootstrap.servers": f"{ADDRESS}:{port}"}
            producer = Producer(bootstrap)
            producer.produce("t", b"one")
            assert producer.flush(WAIT_SECONDS_MAX) == 0
            reader = {"group.id": "g", "auto.offset.reset": "earliest"}
            consumer = Consumer({**bootstrap, **reader})
            consumer.subscribe(["t"])
            (message,) = consumer.consume(1, WAIT_SECONDS_MAX)
            assert message.value() == b"one"
            consumer.close()
            task.send_signal(signal.SIGTERM)  # as ECS does, also before spot capacity ends
            assert task.wait(WAIT_SECONDS_MAX) == 0, log_path.read_text()
        finally:
            if task.poll() is None:
                os.killpg(task.pid, signal.SIGKILL)
                task.wait()
    assert "node stopped" in log_path.read_text()
    assert owners() == {}
