"""Tokens of an issuer, right and forged: a node takes none that Kafka refuses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest

from tests.support.forged_tokens import FORGED
from tests.support.issuer import AUDIENCE, Issuer, first_message
from tests.support.node_process import NodeProcess
from tests.support.peer import CLOSED, Peer
from tools import kafka_broker
from tools.places import ToolAbsent
from tools.ports import free_port, free_ports

# For another broker's start. tests/node/authentication shows a node the same tokens.
pytestmark = pytest.mark.slow

OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
PREFIX = "listener.name.second.oauthbearer"
TAKEN, REFUSED = "taken", "refused"
# What Kafka takes and a node does not.
STRICTER = {
    "long user": "a name has at most 1,000 characters",
    "groups that are no list": "Kafka knows no groups",
    "group that is no text": "Kafka knows no groups",
    "many groups": "Kafka knows no groups",
}


@dataclass(frozen=True)
class Listeners:
    """The ports of both brokers' listeners for tokens."""

    kafka: int
    tidelog: int


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Listeners]:
    root = tmp_path_factory.mktemp("tokens")
    kafka_port, open_port, tidelog_port = free_port(), free_ports(2), free_port()
    common = {
        **issuer.settings,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "connection.failed.authentication.delay.ms": "0",
    }
    of_kafka = common | {
        "listener.security.protocol.map": common["listener.security.protocol.map"]
        + ",CONTROLLER:PLAINTEXT",
        f"{PREFIX}.sasl.jaas.config": f"{OAUTHBEARER}LoginModule required;",
        f"{PREFIX}.sasl.server.callback.handler.class": f"{OAUTHBEARER}ValidatorCallbackHandler",
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}"
    with ExitStack() as stack:
        try:
            stack.enter_context(
                kafka_broker.serve(
                    root / "kafka",
                    of_kafka,
                    second_listener=(kafka_port, kafka_port),
                    java_options=[allowed],
                )
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        config = common | {
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},SECOND://127.0.0.1:{tidelog_port}",
            "sasl.plain.without.tls.enable": "true",
        }
        stack.enter_context(NodeProcess(root / "tidelog", port=open_port, config=config))
        yield Listeners(kafka_port, tidelog_port)


def outcome(port: int, token: str) -> str:
    """Return what becomes of the token; a refused one is told of by the protocol's steps."""
    with closing(Peer("client", port)) as peer:
        peer.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
        answer = peer.call("sasl_authenticate", 2, auth_bytes=first_message(token))
        if answer["error_code"] == "none" and not answer["auth_bytes"]:
            assert peer.call("metadata", 12, topics=[]) != CLOSED
            return TAKEN
        if answer["error_code"] == "none":
            assert b"invalid_token" in answer["auth_bytes"]
            answer = peer.call("sasl_authenticate", 2, auth_bytes=b"\x01")
        assert answer["error_code"] == "sasl_authentication_failed"
        return REFUSED


def outcomes(listeners: Listeners, token: str) -> tuple[str, str]:
    with ThreadPoolExecutor(2) as pool:
        kafka, tidelog = pool.map(outcome, (listeners.kafka, listeners.tidelog), (token, token))
    return kafka, tidelog


def test_tokens_of_the_issuer_are_taken(listeners: Listeners, issuer: Issuer) -> None:
    for token in (
        issuer.token(),
        issuer.token(aud=["a", AUDIENCE]),
        issuer.token("a,b=c"),
        issuer.token("é"),
        issuer.token(scope="read write"),
        issuer.token(header={"typ": "at+jwt"}),
    ):
        assert outcomes(listeners, token) == (TAKEN, TAKEN)


@pytest.mark.parametrize("name", FORGED)
def test_no_token_is_taken_that_kafka_refuses(
    listeners: Listeners, issuer: Issuer, name: str
) -> None:
    kafka = TAKEN if name in STRICTER else REFUSED
    assert outcomes(listeners, FORGED[name](issuer)) == (kafka, REFUSED)
