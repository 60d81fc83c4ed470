"""Real clients at a listener with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

from tests.support.broken_handshakes import broken
from tests.support.certificates import Authority, pkcs8
from tests.support.drivers.java import java_driver
from tests.support.drivers.lines import Message
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, frame
from tools.kernel_machine import EMULATED
from tools.ports import free_port

TOPIC = "t"
VALUES = [b"a record", b"x" * 300_000]
SECONDS_MAX = 600.0 if os.environ.get(EMULATED) else 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_node(folder: Path, authority: Authority, **config: str) -> NodeProcess:
    """Return a node whose only listener for clients has TLS."""
    port = free_port()
    names = {name.replace("_", "."): value for name, value in config.items()}
    settings = {
        "listeners": f"TLS://127.0.0.1:{port}",
        "listener.security.protocol.map": "TLS:SSL",
        "ssl.keystore.location": str(authority.node_pem()),
        "ssl.truststore.location": str(authority.trusted),
        "ssl.reload.interval.ms": "100",
        **names,
    }
    return NodeProcess(folder / "node", port=port, config=settings)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[NodeProcess]:
    with tls_node(tmp_path_factory.mktemp("tls"), authority, ssl_client_auth="required") as node:
        yield node


Client = Callable[[NodeProcess, Authority, Path], list[bytes]]


def librdkafka_settings(node: NodeProcess, authority: Authority, pem: Path) -> dict[str, str]:
    return {
        "bootstrap.servers": node.address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.trusted),
        "ssl.certificate.location": str(pem),
        "ssl.key.location": str(pem),
    }


def librdkafka(node: NodeProcess, authority: Authority, pem: Path) -> list[bytes]:
    settings = librdkafka_settings(node, authority, pem)
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    while len(values) < len(VALUES):
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def aiokafka_client(node: NodeProcess, authority: Authority, pem: Path) -> list[bytes]:
    async def run() -> list[bytes]:
        settings = {
            "bootstrap_servers": node.address,
            "security_protocol": "SSL",
            "ssl_context": authority.client_context(pem),
        }
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(TOPIC, value, partition=0)
        async with aiokafka.AIOKafkaConsumer(**settings) as consumer:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def kafka_python(node: NodeProcess, authority: Authority, pem: Path) -> list[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its import warns of deprecations.
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    settings = {
        "bootstrap_servers": node.address,
        "security_protocol": "SSL",
        "ssl_context": authority.client_context(pem),
    }
    producer = KafkaProducer(**settings)
    for value in VALUES:
        producer.send(TOPIC, value, partition=0).get(SECONDS_MAX)
    producer.close()
    consumer = KafkaConsumer(**settings, group_id=None)
    consumer.assign([TopicPartition(TOPIC, 0)])
    consumer.seek_to_beginning()
    values = [next(consumer).value for _ in VALUES]
    consumer.close()
    return values


def java(node: NodeProcess, authority: Authority, pem: Path) -> list[bytes]:
    driver = java_driver()
    if not driver.command:
        pytest.skip("needs java and Kafka's jars (make tools)")
    properties = pem.with_suffix(".properties")
    properties.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={authority.trusted}\nssl.keystore.location={pkcs8(pem)}\n"
    )
    driver = replace(driver, environment={"CLIENT_PROPERTIES": str(properties)})
    messages = [Message(value, partition=0) for value in VALUES]
    assert len(driver.produce(node.address, TOPIC, messages)) == len(VALUES)
    with driver.member(node.address, TOPIC, "java-group", assignor="range") as member:
        while len(member.records) < len(VALUES):
            assert member.take_in(SECONDS_MAX)
        return [message.value or b"" for _, message in member.records[: len(VALUES)]]


@pytest.mark.parametrize("client", [librdkafka, aiokafka_client, kafka_python, java])
def test_a_client_with_a_certificate_produces_and_consumes(
    client: Client, node: NodeProcess, authority: Authority
) -> None:
    assert client(node, authority, authority.client_pem("alice")) == VALUES


def test_a_client_without_a_certificate_is_refused_and_the_log_says_why(
    node: NodeProcess, authority: Authority
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_versions(node, authority.client_context())
    eventually(lambda: "PEER_DID_NOT_RETURN_A_CERTIFICATE" in node.log, "it is logged")
    node.wait_logged("ssl.client.auth=required: give the client a certificate and its key")


def test_a_client_of_another_authority_is_refused(
    tmp_path: Path, node: NodeProcess, authority: Authority
) -> None:
    stranger = Authority(tmp_path).client_pem("alice")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_versions(node, authority.client_context(stranger))


def test_old_versions_of_tls_are_refused(node: NodeProcess, authority: Authority) -> None:
    context = authority.client_context(authority.client_pem("alice"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_versions(node, context)


def test_clients_of_the_wrong_protocol_are_explained_to_the_operator(
    tmp_path: Path, authority: Authority
) -> None:
    plain_port = free_port()
    node = tls_node(tmp_path, authority)
    node.config["listeners"] += f",PLAIN://127.0.0.1:{plain_port}"
    node.config["listener.security.protocol.map"] += ",PLAIN:PLAINTEXT"
    with node:
        with WireClient(node.port) as client, contextlib.suppress(ConnectionError):
            client.send(frame(18, 0, 1, b"", tags=b""))
            assert client.socket.recv(100)[:1] in (b"", b"\x15")  # an alert
        eventually(lambda: "set its security.protocol to SSL" in node.log, "it is logged")
        with (
            socket.create_connection(("127.0.0.1", plain_port)) as sock,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            authority.client_context().wrap_socket(sock, server_hostname="127.0.0.1")
        eventually(lambda: "the client begins with TLS" in node.log, "it is logged")


def ask_versions(node: NodeProcess, context: ssl.SSLContext) -> bytes:
    """Ask for the node's API versions; return the certificate that it shows (DER)."""
    with (
        socket.create_connection(("127.0.0.1", node.port), 10) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(frame(18, 0, 1, b"", tags=b""))
        if not client.recv(4):
            raise ConnectionResetError("refused")
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def test_certificates_are_replaced_without_a_lost_request(
    tmp_path: Path, authority: Authority
) -> None:
    """Clients that are connected go on, and those that connect anew get the new certificate."""
    with tls_node(tmp_path, authority, ssl_client_auth="none") as node:
        context = authority.client_context()
        shown = {ask_versions(node, context)}
        failures: list[str] = []
        acknowledged: list[int] = []
        is_over = threading.Event()
        settings = librdkafka_settings(node, authority, authority.client_pem("alice"))
        producer = confluent_kafka.Producer(
            {
                **settings,
                "linger.ms": 0,
                "retries": 0,
                "message.timeout.ms": 30_000,
                "error_cb": lambda error: failures.append(str(error)),
            }
        )

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                acknowledged.append(message.offset())
            else:
                failures.append(str(error))

        def produce() -> None:
            while not is_over.is_set():
                producer.produce(TOPIC, b"x" * 1000, partition=0, on_delivery=delivered)
                producer.poll(0.001)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            for count in range(2, 6):
                authority.node_pem()
                eventually(
                    lambda count=count: (
                        shown.add(ask_versions(node, context)) or len(shown) == count
                    ),
                    "new connections get the new certificate",
                )
        finally:
            is_over.set()
            thread.join()
        assert producer.flush(SECONDS_MAX) == 0
        assert failures == []
        assert acknowledged == list(range(len(acknowledged)))
        assert len(acknowledged) > 100


def test_a_certificate_that_cannot_be_used_replaces_none(
    tmp_path: Path, authority: Authority
) -> None:
    with tls_node(tmp_path, authority) as node:
        context = authority.client_context()
        shown = ask_versions(node, context)
        path = Path(node.config["ssl.keystore.location"])
        other_key = Authority(tmp_path / "other").node_pem().read_text()
        good = path.read_text()
        certificates = good[good.index("-----BEGIN CERTIFICATE") :]
        key = re.match(r".*?-----END [A-Z ]*PRIVATE KEY-----\n", other_key, re.DOTALL)
        assert key is not None
        new = path.with_suffix(".new")  # A node may read at any time.
        new.write_text(key[0] + certificates)
        new.rename(path)
        eventually(
            lambda: "the private key does not belong to the first certificate" in node.log,
            "the failure is logged",
        )
        assert ask_versions(node, context) == shown
        path.unlink()
        eventually(lambda: "cannot read" in node.log, "the missing file is logged")
        assert ask_versions(node, context) == shown
        authority.node_pem()
        eventually(lambda: ask_versions(node, context) != shown, "a good one replaces it")
        assert node.log.count("certificate not replaced") == 2


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"ssl_keystore_location": ""}, "listener TLS: TLS needs ssl.keystore.location"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "listener TLS: cannot read /nowhere.pem"),
        ({"ssl_cipher_suites": "RC4"}, "ssl.cipher.suites: 'RC4' is not one of TLS_ECDHE"),
        ({"ssl_principal_mapping_rules": "RULE:(/x/"}, "listener TLS: ssl.principal.mapping"),
        (
            {"ssl_client_auth": "required", "ssl_truststore_location": ""},
            "needs the authorities of clients",
        ),
    ],
)
def test_a_node_with_wrong_settings_does_not_start(
    tmp_path: Path, authority: Authority, config: dict[str, str], problem: str
) -> None:
    node = tls_node(tmp_path, authority, **config)
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        node.start()
    node.wait_logged(problem)


def test_an_answer_of_many_records_is_whole(node: NodeProcess, authority: Authority) -> None:
    """Larger than what the transport holds back, to a client that reads slowly."""
    context = authority.client_context(authority.client_pem("alice"))
    with (
        socket.create_connection(("127.0.0.1", node.port), 10) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as client,
    ):
        for number in range(2_000):
            client.sendall(frame(18, 0, number, b"", tags=b""))
        received = bytearray()
        for number in range(2_000):
            while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
                received += client.recv(1000)
            (size, correlation_id) = struct.unpack_from(">ii", received)
            assert correlation_id == number
            del received[: 4 + size]


def test_broken_handshakes_stop_nobody_and_do_not_fill_the_log(
    tmp_path: Path, authority: Authority
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    context = authority.client_context(authority.client_pem("alice"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = outgoing.read()
    with tls_node(tmp_path, authority, ssl_client_auth="required") as node:
        ask_versions(node, context)
        files = len(node.open_files())
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 10))
                client.sendall(broken(hello, chance))
            ask_versions(node, context)
        eventually(lambda: len(node.open_files()) <= files + 1, "all are closed")
        assert "Traceback" not in node.log
        assert node.log.count("client refused") <= 1
