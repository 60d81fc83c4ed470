"""Brokers with a TLS listener beside their plain one, and a node with ACLs and quotas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.peers.peer import SESSION_MS, Kafka, Tidelog
from bench.process import Node, running_node
from tests.support.acls import ALL, CLUSTER, GROUP, TOPIC, creation
from tests.support.certificates import Authority
from tests.support.client_quotas import alter_quotas, op
from tests.support.peer import Peer as Client
from tools import kafka_broker
from tools.ports import free_port

ACL_COUNT, QUOTA_COUNT = 1_000, 100
UNREACHED = 1e12  # bytes a second
_SUITES = "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256"  # OpenSSL prefers them in this order


class Tls:
    """The certificates of a run, how clients use them, and the node's OpenSSL."""

    def __init__(self, folder: Path, *, node_openssl: str | None = None) -> None:
        """``node_openssl`` is the folder of the node's OpenSSL, if it is not the machine's."""
        self.authority = Authority(folder)
        self.node_pem = self.authority.node_pem()
        self.client_pem = self.authority.client_pem("client")
        # A client that trusts the authority sends its certificate too, and verifies its own by it
        # before each handshake if it is not in the file.
        with self.client_pem.open("ab") as file:
            file.write(self.authority.trusted.read_bytes())
        self.node_variables = {} if node_openssl is None else {"LD_LIBRARY_PATH": node_openssl}

    def of(self, node: Node, port: int) -> Node:
        """Return the same server as clients see it by its TLS listener."""
        settings = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.trusted),
            "ssl.certificate.location": str(self.client_pem),
            "ssl.key.location": str(self.client_pem),
        }
        return dataclasses.replace(node, port=port, client_settings=settings)


class TlsTidelog(Tidelog):
    """A node whose second listener asks for clients' certificates."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self.tls_port = 0

    @contextmanager
    def run(self, folder: Path) -> Iterator[Node]:
        """Start a node; at the end stop it cleanly."""
        port, self.tls_port = free_port(), free_port()
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},TLS://127.0.0.1:{self.tls_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
            "ssl.keystore.location": str(self.tls.node_pem),
            "ssl.truststore.location": str(self.tls.authority.trusted),
            "ssl.client.auth": "required",
            "broker.session.timeout.ms": str(SESSION_MS),
        }
        arguments = ("--log-level", "WARNING", *_set(settings))
        with running_node(folder, *arguments, port=port, variables=self.tls.node_variables) as node:
            yield node


class TlsKafka(Kafka):
    """Apache Kafka with the same second listener."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self.tls_port = free_port()

    def prepare(self, folder: Path) -> None:
        """Format the storage."""
        config = {
            "broker.session.timeout.ms": str(SESSION_MS),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECOND:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(_pkcs8(self.tls.node_pem)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.tls.authority.trusted),
            "ssl.client.auth": "required",
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.cipher.suites": _SUITES,
        }
        kafka_broker.format_storage(folder, config, second_listener=(self.tls_port, self.tls_port))


class GuardedTidelog(Tidelog):
    """A node with an authorizer, 1,000 ACLs and 100 quotas that no client reaches."""

    def run(self, folder: Path) -> AbstractContextManager[Node]:
        """Start a node and give it the rules; at the end stop it cleanly."""
        return _guarded(folder)


@contextmanager
def _guarded(folder: Path) -> Iterator[Node]:
    settings = {
        "authorizer.class.name": "tidelog.acl",
        "allow.everyone.if.no.acl.found": "true",
        "broker.session.timeout.ms": str(SESSION_MS),
    }
    with running_node(folder, "--log-level", "WARNING", *_set(settings)) as node:
        _add_rules(node)
        yield node


def _add_rules(node: Node) -> None:
    """Let anonymous clients do everything by a few ACLs among many others."""
    client = Client("tidelog", node.port)
    own = [
        creation(name, resource_type=kind, operation=ALL, principal="User:ANONYMOUS")
        for kind, name in ((CLUSTER, "kafka-cluster"), (TOPIC, "*"), (GROUP, "*"))
    ]
    others = [
        creation(f"topic-{number}", principal=f"User:user-{number}")
        for number in range(ACL_COUNT - len(own))
    ]
    answer = client.call("create_acls", 3, creations=[*others, *own])
    if any(one["error_code"] != "none" for one in answer["results"]):
        raise RuntimeError("an ACL was refused")
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    unreached = [op(key, UNREACHED) for key in keys]
    entities: list[Mapping[str, str | None]] = [
        {"user": f"user-{number}"} for number in range(QUOTA_COUNT - 1)
    ]
    alter_quotas(client, *((entity, unreached) for entity in ({"client-id": None}, *entities)))
    client.close()


def _set(settings: Mapping[str, str]) -> Iterator[str]:
    for name, value in settings.items():
        yield "--set"
        yield f"{name}={value}"


def _pkcs8(pem: Path) -> Path:
    """Return a file with the key as Java reads it, and the certificates."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    data = pem.read_bytes()
    key = load_pem_private_key(data, None)
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = pem.with_suffix(".pkcs8.pem")
    path.write_bytes(encoded + data[data.index(b"-----BEGIN CERTIFICATE-----") :])
    return path
