"""One node with a listener for logins over TLS and one for certificates; what clients present."""

from __future__ import annotations

import json
import ssl as ssl_module
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from tidelog import Admin, DelegationToken, Sasl

from tests.clients.logins.login import TLS_ALONE, Login
from tests.support.certificates import Authority, pkcs8
from tests.support.issuer import Issuer
from tests.support.sasl_node import PASSWORD, USER, SaslNode
from tools.ports import free_port


class SecureNode(SaslNode):
    """Its listener ``TLS`` asks for certificates; ``SASL`` has TLS too."""

    def __init__(self, data_dir: Path, authority: Authority, issuer: Issuer) -> None:
        key = {"delegation_token_secret_key": "canary of a secret key"}
        super().__init__(data_dir, **issuer.settings, **key)
        self.tls_port = free_port()
        self.config["listeners"] += f",TLS://127.0.0.1:{self.tls_port}"
        self.config |= {
            "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_SSL,TLS:SSL",
            "listener.name.tls.ssl.client.auth": "required",
            "ssl.keystore.location": str(authority.node_pem()),
            "ssl.truststore.location": str(authority.trusted),
            "group.initial.rebalance.delay.ms": "0",
        }
        self.config["listener.name.sasl.sasl.enabled.mechanisms"] += ",OAUTHBEARER"


@dataclass
class Place:
    """The node, and everything that right and wrong credentials are made of."""

    node: SecureNode
    authority: Authority
    issuer: Issuer
    stranger_pem: Path  # of an authority that the node does not know
    pem: Path
    give_token: Callable[[str], str]  # returns the address where clients fetch it

    @property
    def subject(self) -> str:
        """The name in the client's certificate."""
        certificate = x509.load_pem_x509_certificate(self.pem.read_bytes())
        return certificate.subject.rfc4514_string()

    def delegation_token(self) -> DelegationToken:
        """Return a new token of the user."""
        sasl = Sasl("SCRAM-SHA-256", USER, PASSWORD)
        ssl = ssl_module.create_default_context(cafile=str(self.authority.trusted))
        with Admin(self.node.sasl_address, ssl=ssl, sasl=sasl).sync() as admin:
            return admin.create_delegation_token()

    def login(self, mechanism: str, *, is_right: bool = True) -> Login:
        """Return the login of the user; a wrong one has one thing that is not right."""
        trusted = self.authority.trusted
        if mechanism == TLS_ALONE:
            return Login(
                f"127.0.0.1:{self.node.tls_port}",
                mechanism,
                trusted,
                pem=self.pem if is_right else self.stranger_pem,
            )
        address = self.node.sasl_address
        if mechanism == "OAUTHBEARER":
            token = self.issuer.token(USER, **({} if is_right else {"aud": "elsewhere"}))
            return Login(
                address, mechanism, trusted, token=token, token_endpoint=self.give_token(token)
            )
        if is_right:
            return Login(address, mechanism, trusted, user=USER, password=PASSWORD)
        if mechanism == "SCRAM-SHA-512":
            return Login(address, mechanism, trusted, user="nobody", password=PASSWORD)
        return Login(address, mechanism, trusted, user=USER, password="wrong")


@pytest.fixture(scope="module")
def token_endpoint() -> Iterator[Callable[[str], str]]:
    """Serve the token that was given last, as an identity provider does (RFC 6749, 4.4.3)."""
    served: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = {"access_token": served[-1], "token_type": "Bearer", "expires_in": 600}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()

    def give(token: str) -> str:
        served.append(token)
        return f"http://127.0.0.1:{server.server_address[1]}/token"

    yield give
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, token_endpoint: Callable[[str], str]
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("logins")
    authority = Authority(folder / "authority")
    stranger = Authority(folder / "stranger")
    issuer = Issuer(folder / "keys.json")
    with SecureNode(folder / "node", authority, issuer) as node:
        node.prepare()
        yield Place(
            node,
            authority,
            issuer,
            stranger_pem=pkcs8(stranger.client_pem("eve")),
            pem=pkcs8(authority.client_pem("alice")),
            give_token=token_endpoint,
        )
