"""What clients do to a node is in the audit topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tidelog_core.audit.events import AUDIT_TOPIC
from tidelog_core.message_schemas import load_request_schema
from tidelog_core.role_messages import CREATE
from tidelog_node.audit.changes import CHANGING_APIS

from tests.support.acls import READ, TOPIC, creation
from tests.support.batches import batch_of
from tests.support.kafka_messages import SERVED_KEYS
from tests.support.message_bytes import joined, random_message
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tests.support.sasl_node import PASSWORD, SaslNode
from tests.support.sasl_node import TOPIC as NAME

SECONDS_MAX = 60.0
ALL = "authenticate,management,denied,produce,consume"
Event = dict[str, Any]


class Audited:
    """A node, and the events that it has published."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self._consumer = Consumer(
            {"bootstrap.servers": node.address, "group.id": "auditor", "client.id": "auditor"}
        )
        self._is_assigned = False
        self._events: list[Event] = []

    def client(self, user: str = "alice", password: str = PASSWORD) -> Peer:
        """Return a connection of a user."""
        assert isinstance(self.node, SaslNode)
        peer = Peer("tidelog", self.node.sasl_port)
        peer.call("sasl_handshake", 1, mechanism="PLAIN")
        token = f"\0{user}\0{password}".encode()
        peer.call("sasl_authenticate", 2, auth_bytes=token)
        return peer

    def find(self, is_wanted: Callable[[Event], bool]) -> Event:
        """Return the first event of the kind, once it is there."""
        return self.find_all(is_wanted, 1)[0]

    def find_all(self, is_wanted: Callable[[Event], bool], count: int) -> list[Event]:
        deadline = time.monotonic() + SECONDS_MAX
        while len(found := [one for one in self._events if is_wanted(one)]) < count:
            assert time.monotonic() < deadline, self._events
            self._read()
        return found

    def _read(self) -> None:
        if not self._is_assigned:
            topic = self._consumer.list_topics(AUDIT_TOPIC, timeout=60).topics[AUDIT_TOPIC]
            if topic.error is not None or not topic.partitions:
                time.sleep(0.2)
                return
            self._consumer.assign([TopicPartition(AUDIT_TOPIC, p, 0) for p in topic.partitions])
            self._is_assigned = True
        for message in self._consumer.consume(1000, timeout=0.3):
            if message.error() is not None:
                raise KafkaException(message.error())
            value = message.value()
            assert value is not None
            self._events.append(json.loads(value))

    def close(self) -> None:
        self._consumer.close()


def audited_node(folder: Path, **settings: str) -> SaslNode:
    given = {
        "audit_enable": "true",
        "audit_event_types": ALL,
        "audit_topic_num_partitions": "2",
        "audit_excluded_principals": "User:monitor",
        "authorizer_class_name": "tidelog.acl",
        "super_users": "User:ANONYMOUS",
        "auto_create_topics_enable": "false",
    }
    return SaslNode(folder, **{**given, **settings})


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    with audited_node(tmp_path_factory.mktemp("audited") / "node") as node:
        node.prepare()
        found = Audited(node)
        yield found
        found.close()


@pytest.fixture
def admin(audited: Audited) -> Iterator[Peer]:
    peer = Peer("tidelog", audited.node.port, client_id=b"admin")
    yield peer
    peer.close()


def operation(event: Event) -> str:
    return str(event.get("api", {}).get("operation"))


def user(event: Event) -> str:
    return str(event["actor"]["user"]["name"])


def resources(event: Event) -> list[str]:
    return [one["name"] for one in event.get("resources", [])]


def test_a_login_and_a_refused_one_are_events(audited: Audited) -> None:
    audited.client().close()
    audited.client(password="wrong").close()
    login = audited.find(lambda one: one["class_uid"] == 3002 and one["status_id"] == 1)
    assert (user(login), login["auth_protocol"]) == ("User:alice", "PLAIN")
    assert login["src_endpoint"]["ip"] == "127.0.0.1"
    refused = audited.find(lambda one: one["class_uid"] == 3002 and one["status_id"] == 2)
    assert "wrong user or password" in refused["status_detail"]
    assert user(refused) == ""


def test_changes_are_events_with_who_and_what_and_how_they_ended(
    audited: Audited, admin: Peer
) -> None:
    admin.call(
        "create_topics",
        7,
        topics=[
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": "1000"}],
            }
            for name in ("made", NAME)
        ],
        timeout=10_000,
    )
    made = audited.find(lambda one: operation(one) == "CreateTopics" and "made" in resources(one))
    assert (user(made), made["status_id"], made["type_uid"]) == ("User:ANONYMOUS", 1, 600301)
    assert made["unmapped"]["client_id"] == "admin"
    assert made["resources"][0]["data"] == {"retention.ms": "1000"}
    failed = audited.find(lambda one: operation(one) == "CreateTopics" and one["status_id"] == 2)
    assert (resources(failed), failed["status_detail"]) == ([NAME], "topic_already_exists")
    admin.call("create_acls", 3, creations=[creation("made", resource_type=TOPIC, operation=READ)])
    acl = audited.find(lambda one: operation(one) == "CreateAcls")
    assert acl["resources"][0]["data"]["operation"] == "READ"
    ops = {"name": "ops", "operation": CREATE, "added": ["User:alice"]}
    admin.call("alter_roles", 0, alterations=[ops])
    role = audited.find(lambda one: operation(one) == "AlterRoles")
    assert role["resources"] == [
        {
            "type": "Role",
            "name": "ops",
            "data": {"operation": "create", "added": "User:alice", "removed": ""},
        }
    ]
    gone = [{"name": "made", "topic_id": None}]
    admin.call("delete_topics", 6, topics=gone, timeout=10_000)
    audited.find(lambda one: operation(one) == "DeleteTopics" and resources(one) == ["made"])


def test_users_are_named_without_anything_of_their_passwords(audited: Audited) -> None:
    """``prepare`` has made one."""
    made = audited.find(lambda one: operation(one) == "AlterUserScramCredentials")
    assert made["resources"] == [
        {"type": "User", "name": "alice", "data": {"SCRAM-SHA-256": "set"}}
    ]


def test_denials_are_summed(audited: Audited) -> None:
    with closing(audited.client()) as alice:
        for _ in range(5):
            answer = alice.produce(NAME, batch_of(b"x"))
            assert answer["error_code"] == "topic_authorization_failed"
    denied = audited.find(
        lambda one: operation(one) == "Write" and one["metadata"]["event_code"] == "denied"
    )
    assert (user(denied), resources(denied), denied["count"]) == ("User:alice", [NAME], 1)


def test_who_reads_and_writes_a_topic_is_recorded_once(audited: Audited, admin: Peer) -> None:
    for _ in range(3):
        assert admin.produce(NAME, batch_of(b"x"))["error_code"] == "none"
        assert admin.fetch(NAME, 0)["responses"][0]["partitions"][0]["records"]

    def is_transfer(event: Event) -> bool:
        return event["metadata"]["event_code"] in ("produce", "consume") and resources(event) == [
            NAME
        ]

    found = audited.find_all(is_transfer, 2)
    assert sorted(operation(one) for one in found) == ["Fetch", "Produce"]
    assert {one["unmapped"]["client_id"] for one in found} == {"admin"}


def test_nobody_but_nodes_writes_to_the_topic_or_deletes_it(audited: Audited, admin: Peer) -> None:
    """Not even super users, as this client is."""
    audited.find(lambda _: True)
    answer = admin.produce(AUDIT_TOPIC, batch_of(b"forged"))
    assert answer["error_code"] == "topic_authorization_failed"
    gone = [{"name": AUDIT_TOPIC, "topic_id": None}]
    (deleted,) = admin.call("delete_topics", 6, topics=gone, timeout=10_000)["responses"]
    assert deleted["error_code"] == "topic_authorization_failed"
    partitions = [{"partition_index": 0, "offset": -1}]
    cut = admin.call(
        "delete_records",
        2,
        topics=[{"name": AUDIT_TOPIC, "partitions": partitions}],
        timeout=10_000,
    )
    error = cut["topics"][0]["partitions"][0]["error_code"]
    assert error == "topic_authorization_failed"


@pytest.mark.parametrize("api_key", sorted(CHANGING_APIS))
def test_any_request_that_is_answered_can_be_recorded(
    api_key: int, audited: Audited, admin: Peer
) -> None:
    """Every version, of a client that may do everything, with random values."""
    name = next(name for name, key in SERVED_KEYS.items() if key == api_key)
    answer = admin.call("api_versions", 3, client_software_name="t", client_software_version="1")
    (found,) = [one for one in answer["api_keys"] if one["api_key"] == api_key]
    for version in range(found["min_version"], found["max_version"] + 1):
        schema = load_request_schema(api_key, version)
        for seed in range(5):
            pieces = random_message(schema, Random(seed), texts=("some",), numbers=(1,), nulls=0)
            answer = admin.call_raw(name, version, joined(pieces))
            assert isinstance(answer, dict), f"version {version}, seed {seed}: {answer}"
    assert "Traceback" not in audited.node.log


def test_events_outlive_a_stop_of_the_node(tmp_path: Path) -> None:
    with audited_node(tmp_path / "node") as node:
        node.prepare()
        found = Audited(node)
        for _ in range(2):
            found.client(user="nobody").close()
        node.stop()
        node.start()
        refused = found.find_all(lambda one: one["class_uid"] == 3002, 2)
        assert sum(one["count"] for one in refused) == 2
        found.close()


def test_a_node_that_leads_nothing_writes_to_the_leader_and_loses_nothing_while_there_is_none(
    tmp_path: Path,
) -> None:
    config = {
        "audit.enable": "true",
        "audit.topic.num.partitions": "1",
        "default.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
    }
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                NodeProcess(
                    tmp_path / f"node-{broker_id}",
                    broker_id=broker_id,
                    metadata_store=f"sqlite:{tmp_path / 'metadata.db'}",
                    object_store=f"file:{tmp_path / 'objects'}",
                    config=config,
                )
            )
            for broker_id in (1, 2)
        )
        peer = stack.enter_context(closing(Peer("tidelog", second.port)))
        metadata = peer.until(
            lambda: peer.call("metadata", 12, topics=[{"name": AUDIT_TOPIC}]),
            lambda answer: answer["topics"][0]["error_code"] == "none",
        )
        leader_id = metadata["topics"][0]["partitions"][0]["leader_id"]
        leader, other = (first, second) if leader_id == 1 else (second, first)
        leader.kill()
        with closing(Peer("tidelog", other.port)) as client:
            group = client.call("delete_groups", 2, groups_names=["nobody"])
            assert isinstance(group, dict)
        time.sleep(1.2)  # for an attempt that fails
        leader.start()
        audited = Audited(leader)
        found = audited.find(lambda one: operation(one) == "DeleteGroups")
        assert found["dst_endpoint"]["uid"] == str(other.broker_id)
        audited.close()
