"""The registry of nodes whose first listener has TLS: HTTPS, logins in it, and certificates."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tests.support.sasl_node import PASSWORD, USER
from tests.support.secured_node import SecuredNode
from tests.support.waiting import eventually
from tools.ports import free_port

HANDSHAKES = 300  # more than the registry has connections


class HttpsNode(SecuredNode):
    """Its first listener has the name; the registry has the security of that one."""

    def __init__(self, folder: Path, first: str) -> None:
        super().__init__(folder)
        listeners = self.config["listeners"].split(",")
        listeners.sort(key=lambda one: not one.startswith(f"{first}://"))
        self.config["listeners"] = ",".join(listeners)
        self.registry_port = free_port()
        self.arguments += ("--registry-port", str(self.registry_port))

    def status(self, context: ssl.SSLContext, login: str = "") -> int:
        """Return the status of a request's answer."""
        headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.registry_port, timeout=60, context=context
        )
        try:
            connection.request("GET", "/subjects", headers=headers if login else {})
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def login_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsNode]:
    with HttpsNode(tmp_path_factory.mktemp("https"), "SASL") as running:
        running.set_password(PASSWORD)
        context, login = running.authority.client_context(), f"{USER}:{PASSWORD}"
        eventually(lambda: running.status(context, login) == 200)
        yield running


@pytest.fixture(scope="module")
def certificate_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsNode]:
    with HttpsNode(tmp_path_factory.mktemp("mutual"), "TLS") as running:
        yield running


def test_a_client_logs_in_over_https(login_node: HttpsNode) -> None:
    settings = {
        "url": f"https://127.0.0.1:{login_node.registry_port}",
        "ssl.ca.location": str(login_node.authority.trusted),
        "basic.auth.user.info": f"{USER}:{PASSWORD}",
    }
    with SchemaRegistryClient(settings) as client:
        assert client.register_schema("tls-value", Schema('"int"', "AVRO")) == 1
        assert client.get_subjects() == ["tls-value"]
    with SchemaRegistryClient({**settings, "basic.auth.user.info": f"{USER}:wrong"}) as client:
        with pytest.raises(SchemaRegistryError) as refused:
            client.get_subjects()
        assert refused.value.http_status_code == 401
    assert login_node.status(login_node.authority.client_context()) == 401


def test_a_client_that_does_not_trust_the_authority_sends_nothing(login_node: HttpsNode) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        login_node.status(ssl.create_default_context(), f"{USER}:{PASSWORD}")


def test_plain_http_gets_no_answer(login_node: HttpsNode) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", login_node.registry_port, timeout=60)
    connection.request("GET", "/subjects")
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        connection.getresponse()
    connection.close()
    assert "ERROR" not in login_node.log


def test_handshakes_that_never_end_keep_nobody_out(login_node: HttpsNode) -> None:
    address = ("127.0.0.1", login_node.registry_port)
    silent = [socket.create_connection(address, timeout=60) for _ in range(HANDSHAKES)]
    try:
        context = login_node.authority.client_context()
        assert login_node.status(context, f"{USER}:{PASSWORD}") == 200
        silent[0].settimeout(60)
        with suppress(ConnectionError):
            assert silent[0].recv(1) == b"", "the oldest was ended for a new one"
    finally:
        for one in silent:
            one.close()
    assert "ERROR" not in login_node.log


def test_a_caller_needs_a_certificate_where_clients_do(certificate_node: HttpsNode) -> None:
    authority = certificate_node.authority
    assert certificate_node.status(authority.client_context(authority.client_pem("carol"))) == 200
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
        certificate_node.status(authority.client_context())
