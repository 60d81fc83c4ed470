"""Clients under ACLs get their own class of the error that the missing right has."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import tidelog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from tidelog import errors

from tests.support.acl_rules import (
    DESCRIBE,
    IDEMPOTENT_WRITE,
    READ,
    WITH_ACLS,
    WRITE,
)
from tests.support.acls import ALL, CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, acl_filter, creation
from tests.support.batches import batch_of
from tests.support.drivers.process import ROOT
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tools import kafka_java
from tools.java_options import QUICK_JAVA

ADMIN, CLIENT = "127.0.0.2", "127.0.0.1"  # where clients connect from by themselves
ANONYMOUS = "User:ANONYMOUS"
NAME = "orders"
SECONDS_MAX = 60.0
OK = "ok"
CONFIG = WITH_ACLS | {"group.initial.rebalance.delay.ms": "0"}


class Case(NamedTuple):
    """What a client does, with which rights, and the code of its error."""

    action: str
    rights: tuple[tuple[int, int], ...]
    code: str


CASES = {
    "produce": Case("produce", ((TOPIC, WRITE),), OK),
    "produce with another right to the topic": Case(
        "produce", ((TOPIC, READ), (CLUSTER, IDEMPOTENT_WRITE)), "TOPIC_AUTHORIZATION_FAILED"
    ),
    "produce without any right to the topic": Case(
        "produce", ((CLUSTER, IDEMPOTENT_WRITE),), "TOPIC_AUTHORIZATION_FAILED"
    ),
    "produce without a right to write anywhere": Case(
        "produce", ((TOPIC, DESCRIBE),), "CLUSTER_AUTHORIZATION_FAILED"
    ),
    "consume": Case("consume", ((TOPIC, READ), (GROUP, READ)), OK),
    "consume without the group": Case("consume", ((TOPIC, READ),), "GROUP_AUTHORIZATION_FAILED"),
    "consume what may only be described": Case(
        "consume", ((TOPIC, DESCRIBE), (GROUP, READ)), "TOPIC_AUTHORIZATION_FAILED"
    ),
    "consume without the topic": Case("consume", ((GROUP, READ),), "TOPIC_AUTHORIZATION_FAILED"),
    "transact": Case("transact", ((TOPIC, WRITE), (TRANSACTIONAL_ID, WRITE)), OK),
    "transact without the id": Case(
        "transact", ((TOPIC, WRITE),), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    ),
    "transact without the topic": Case(
        "transact", ((TOPIC, DESCRIBE), (TRANSACTIONAL_ID, WRITE)), "TOPIC_AUTHORIZATION_FAILED"
    ),
}
NAMES = {TOPIC: NAME, GROUP: "g", CLUSTER: "kafka-cluster", TRANSACTIONAL_ID: "x"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The administrator of a node, at an address of its own."""
    with NodeProcess(tmp_path_factory.mktemp("acls") / "node", config=CONFIG) as node:
        with_topic = Peer("tidelog", node.port)
        with_topic.create_topic(NAME)
        with_topic.produce(NAME, batch_of(b"first"))
        with_topic.await_coordinator("g")
        with_topic.await_coordinator("x", key_type=1)
        with_topic.close()
        peer = Peer("tidelog", node.port, address=ADMIN)
        everything = [
            creation("*", resource_type=kind, principal=ANONYMOUS, host=ADMIN, operation=ALL)
            for kind in (TOPIC, GROUP, TRANSACTIONAL_ID)
        ]
        of_cluster = creation(
            "kafka-cluster", resource_type=CLUSTER, principal=ANONYMOUS, host=ADMIN, operation=ALL
        )
        peer.call("create_acls", 3, creations=[*everything, of_cluster])
        yield peer
        peer.close()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, admin: Peer) -> Case:
    """One case, whose rights the clients have by now."""
    one = CASES[request.param]
    admin.call("delete_acls", 3, filters=[acl_filter(host_filter=CLIENT)])
    rules = [
        creation(
            NAMES[kind], resource_type=kind, principal=ANONYMOUS, host=CLIENT, operation=operation
        )
        for kind, operation in one.rights
    ]
    admin.call("create_acls", 3, creations=rules)
    return one


# -- librdkafka --


def librdkafka_produces(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUIET})
    failures: list[KafkaError] = []
    delivered: list[object] = []

    def note(error: KafkaError | None, message: object) -> None:
        delivered.append(message)
        if error is not None:
            failures.append(error)

    producer.produce(NAME, b"librdkafka", partition=0, on_delivery=note)
    for _ in range(int(SECONDS_MAX / 0.1)):
        producer.poll(0.1)
        if delivered:
            break
    if failures:
        raise KafkaException(failures[0])
    assert delivered


def librdkafka_consumes(address: str) -> None:
    config = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, **QUIET})
    try:
        consumer.subscribe([NAME])
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def librdkafka_transacts(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x", **QUIET})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(NAME, b"librdkafka", partition=0)
    try:
        producer.commit_transaction(SECONDS_MAX)
    except KafkaException:
        with contextlib.suppress(KafkaException):  # Nothing was begun at the coordinator.
            producer.abort_transaction(SECONDS_MAX)
        raise


QUIET: Mapping[str, Any] = {"log_level": 0}
OF_LIBRDKAFKA: Mapping[str, Callable[[str], None]] = {
    "produce": librdkafka_produces,
    "consume": librdkafka_consumes,
    "transact": librdkafka_transacts,
}


def test_librdkafka(case: Case, admin: Peer) -> None:
    address = f"127.0.0.1:{admin.port}"
    if case.code == OK:
        OF_LIBRDKAFKA[case.action](address)
        return
    with pytest.raises(KafkaException) as raised:
        OF_LIBRDKAFKA[case.action](address)
    assert raised.value.args[0].code() == getattr(KafkaError, case.code)


# -- Java --


@pytest.fixture(scope="module")
def java() -> Iterator[Callable[..., str]]:
    """Has Java's client do something; returns the class of its error."""
    program, jars = shutil.which("java"), kafka_java.class_path()
    if program is None or jars is None:
        pytest.skip("needs java and Kafka's jars: run `make tools`")
    classes = kafka_java.compiled(ROOT / "tests" / "support" / "drivers" / "AclDriver.java")
    command = [program, *QUICK_JAVA, "-cp", f"{jars}:{classes}", "AclDriver"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

    def call(*fields: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join(fields) + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield call
    process.communicate(timeout=SECONDS_MAX)


def test_java(case: Case, admin: Peer, java: Callable[..., str]) -> None:
    name = {"consume": "g", "transact": "x"}.get(case.action, "")
    found = java(f"127.0.0.1:{admin.port}", case.action, NAME, name)
    words = case.code.removesuffix("_FAILED").split("_")
    assert found == (OK if case.code == OK else "".join(map(str.capitalize, words)) + "Exception")


# -- the SDK --


async def sdk_produces(address: str) -> None:
    async with tidelog.Producer(address, enable_idempotence=True) as producer:
        await producer.send_and_wait(NAME, b"sdk", partition=0)


async def sdk_consumes(address: str) -> None:
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
    async with tidelog.Consumer(address, topics=NAME, **options) as consumer:
        async with asyncio.timeout(SECONDS_MAX):
            await anext(aiter(consumer))
        await consumer.commit()


async def sdk_transacts(address: str) -> None:
    async with (
        tidelog.Producer(address, transactional_id="x") as producer,
        producer.transaction(),
    ):
        await producer.send(NAME, b"sdk", partition=0)


async def test_the_sdk(case: Case, admin: Peer) -> None:
    address = f"127.0.0.1:{admin.port}"
    act = {"produce": sdk_produces, "consume": sdk_consumes, "transact": sdk_transacts}
    if case.code == OK:
        await act[case.action](address)
        return
    expected = getattr(errors, "".join(map(str.capitalize, case.code.split("_"))))
    with pytest.raises((expected, errors.TransactionAborted)) as raised:
        await act[case.action](address)
    error = raised.value
    assert isinstance(
        error.cause if isinstance(error, errors.TransactionAborted) else error, expected
    )
