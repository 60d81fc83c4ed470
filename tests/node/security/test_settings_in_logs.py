"""What clients send as values of settings is in no log, whatever becomes of the request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema

from tests.support.kafka_messages import API_KEYS
from tests.support.message_bytes import broken, random_message
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

CANARY = "canary-of-a-setting"
TOPIC, BROKER, GROUP = 2, 4, 32
# Secrets of a listener, and names that a client has mistyped.
NAMES = (
    *("ssl.keystore.key", "ssl.key.password", "ssl.keystore.certificate.chain"),
    *("listener.name.outside.ssl.key.password", "sasl.jaas.config", "ssl.key.pasword"),
)
RESOURCES = ((BROKER, "1"), (BROKER, ""), (TOPIC, "t"), (GROUP, "g"))
SEEDS = range(30)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("secrets")
    with NodeProcess(folder / "node", arguments=("--log-level", "DEBUG")) as node:
        yield node


def test_values_of_refused_settings_are_in_no_log_and_no_file(node: NodeProcess) -> None:
    """CVE-2026-33558: brokers wrote such requests into their log at DEBUG."""
    with closing(Peer("tidelog", node.port)) as peer:
        peer.create_topic("t")
        for kind, name in RESOURCES:
            for setting in NAMES:
                entry: dict[str, Any] = {"name": setting, "value": CANARY}
                of = {"resource_type": kind, "resource_name": name}
                for api, operation in (
                    ("alter_configs", {}),
                    ("incremental_alter_configs", {"config_operation": 0}),
                ):
                    resource = {**of, "configs": [{**entry, **operation}]}
                    answer = peer.call(api, 1, resources=[resource], validate_only=False)
                    assert answer["responses"][0]["error_code"] != "none", (api, setting)
        created = {
            "name": "new",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": NAMES[0], "value": CANARY}],
        }
        answer = peer.call("create_topics", 7, topics=[created], timeout=1_000)
        assert answer["topics"][0]["error_code"] == "invalid_config"
    node.wait_logged("DEBUG")
    assert_nowhere(node)


def test_values_in_broken_requests_are_in_no_log_and_no_file(node: NodeProcess) -> None:
    for api in ("alter_configs", "incremental_alter_configs", "create_topics"):
        schema = load_request_schema(API_KEYS[api], 1 if api != "create_topics" else 7)
        for seed in SEEDS:
            random = Random(seed)
            body = broken(random_message(schema, random, texts=(CANARY,), nulls=0), random)
            with closing(Peer("tidelog", node.port)) as peer:
                peer.exchange(
                    peer.frame(API_KEYS[api], schema.__version__, body, is_flexible=True),
                    timeout=0.2,
                )
    assert_nowhere(node)


def assert_nowhere(node: NodeProcess) -> None:
    folder: Path = node.data_dir
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in (*files, node.log_path) if CANARY.encode() in path.read_bytes()] == []
