"""Real clients at a node that asks who they are; ``tests/clients/logins`` has all of them."""

from __future__ import annotations

import asyncio
import base64
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from tests.support.certificates import Authority
from tests.support.sasl_node import (
    MECHANISMS,
    PASSWORD,
    SECONDS_MAX,
    TOPIC,
    USER,
    SaslNode,
)
from tests.support.waiting import eventually

VALUES = [b"a record", b"x" * 300_000]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    """One node for all clients here."""
    with SaslNode(tmp_path_factory.mktemp("sasl") / "node") as node:
        node.prepare()
        yield node


def librdkafka_settings(node: SaslNode, mechanism: str, password: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def librdkafka(node: SaslNode, mechanism: str, password: str, user: str) -> list[bytes]:
    """Produce and consume in a group; raise the client's own error."""
    problems: list[confluent_kafka.KafkaError] = []
    settings = librdkafka_settings(node, mechanism, password, user)
    settings["error_cb"] = problems.append
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce(TOPIC, value, partition=0)
    deadline = time.monotonic() + SECONDS_MAX
    while producer.flush(0.05) and time.monotonic() < deadline:
        for problem in problems:
            if problem.code() == confluent_kafka.KafkaError._AUTHENTICATION:
                producer.purge()
                raise confluent_kafka.KafkaException(problem)
    start = end_offset(node) - len(VALUES)
    consumer = confluent_kafka.Consumer({**settings, "group.id": "librdkafka"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, start)])
    values: list[bytes] = []
    while len(values) < len(VALUES):
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def end_offset(node: SaslNode) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.address, "group.id": "x"})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), SECONDS_MAX)
    consumer.close()
    return int(end)


def test_librdkafka_is_told_which_mechanisms_there_are(node: SaslNode) -> None:
    problems: list[confluent_kafka.KafkaError] = []
    settings = librdkafka_settings(node, "OAUTHBEARER", "", "")
    settings |= {
        "error_cb": problems.append,
        "sasl.oauthbearer.config": "principal=x",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
    }
    producer = confluent_kafka.Producer(settings)
    eventually(lambda: bool(producer.poll(0.05) or problems))
    assert "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN" in problems[0].str()


def test_no_secret_is_in_the_log_at_debug(node: SaslNode) -> None:
    """CVE-2026-33558."""
    librdkafka(node, "PLAIN", PASSWORD, USER)
    with pytest.raises(confluent_kafka.KafkaException):
        librdkafka(node, "SCRAM-SHA-512", PASSWORD, "canary-nobody")
    assert node.logins()
    node.wait_logged("client refused")
    for secret in ("canary", base64.b64encode(PASSWORD.encode()).decode()):
        assert secret not in node.log
    assert "Traceback" not in node.log


def renewals(node: SaslNode) -> int:
    """Return how often the client that did so most has authenticated again."""
    clients = [client for client, _, _ in node.logins()]
    return max((clients.count(client) for client in clients), default=1) - 1


@pytest.mark.slow  # seconds, to see three sessions end; it renews them after 0.9 of their time
def test_librdkafka_authenticates_again_without_losing_a_request(tmp_path: Path) -> None:
    with SaslNode(tmp_path / "node", connections_max_reauth_ms="2000") as node:
        node.prepare()
        problems: list[confluent_kafka.KafkaError] = []
        settings = librdkafka_settings(node, "SCRAM-SHA-512", PASSWORD, USER)
        settings |= {"error_cb": problems.append}
        producer = confluent_kafka.Producer({**settings, "linger.ms": 0, "retries": 0})
        consumer = confluent_kafka.Consumer({**settings, "group.id": "g"})
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        refused: list[object] = []
        sent = consumed = 0

        def on_delivery(error: object, _: object) -> None:
            if error is not None:
                refused.append(error)

        deadline = time.monotonic() + SECONDS_MAX
        while renewals(node) < 3 and time.monotonic() < deadline:
            for _ in range(20):
                producer.produce(TOPIC, b"v", partition=0, on_delivery=on_delivery)
                producer.poll(0.005)
                sent += 1
                consumed += consumer.poll(0) is not None
        assert producer.flush(SECONDS_MAX) == 0
        while consumed < sent and consumer.poll(SECONDS_MAX) is not None:
            consumed += 1
        assert (refused, problems) == ([], [])
        consumer.close()
        assert renewals(node) >= 3
        assert consumed == end_offset(node) == sent


# aiokafka leaves the socket of a connection open that ends while it logs in.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_that_cannot_authenticate_again_connects_again(tmp_path: Path) -> None:
    """aiokafka (its pull request 1105) ignores the life of a session."""
    with SaslNode(tmp_path / "node", connections_max_reauth_ms="150") as node:
        node.prepare()

        async def run() -> int:
            settings = {
                "bootstrap_servers": node.sasl_address,
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": USER,
                "sasl_plain_password": PASSWORD,
            }
            sent = 0
            async with aiokafka.AIOKafkaProducer(**settings) as producer:
                while len(node.logins()) <= 3:
                    await producer.send_and_wait(TOPIC, b"v", partition=0)
                    sent += 1
                    await asyncio.sleep(0.02)
            return sent

        sent = asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
        gc.collect()  # What it has left open is told of here, not in the next test.
        assert end_offset(node) == sent
        assert renewals(node) == 0
        assert len(node.logins()) > 3


def test_clients_log_in_over_tls_and_are_the_user_of_the_login(tmp_path: Path) -> None:
    """Also where they have a certificate: its name is not that of the session."""
    authority = Authority(tmp_path / "authority")
    config = {
        "listener_security_protocol_map": "OPEN:PLAINTEXT,SASL:SASL_SSL",
        "listener_name_sasl_sasl_plain_without_tls_enable": "false",
        "listener_name_sasl_ssl_client_auth": "required",
        "ssl_keystore_location": str(authority.node_pem()),
        "ssl_truststore_location": str(authority.trusted),
    }
    pem = str(authority.client_pem("bob"))
    with SaslNode(tmp_path / "node", **config) as node:
        node.prepare()
        for mechanism in MECHANISMS:
            settings = librdkafka_settings(node, mechanism, PASSWORD, USER) | {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(authority.trusted),
                "ssl.certificate.location": pem,
                "ssl.key.location": pem,
            }
            producer = confluent_kafka.Producer(settings)
            producer.produce(TOPIC, VALUES[1], partition=0)
            assert producer.flush(SECONDS_MAX) == 0
            problems: list[confluent_kafka.KafkaError] = []
            settings |= {"sasl.password": "wrong", "error_cb": problems.append}
            refused = confluent_kafka.Producer(settings)
            eventually(lambda: bool(refused.poll(0.05) or problems))  # noqa: B023
            assert problems[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
        assert {principal for _, principal, _ in node.logins()} == {f"User:{USER}"}
