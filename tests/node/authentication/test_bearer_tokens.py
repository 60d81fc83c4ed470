"""OAUTHBEARER: which tokens a node takes, and what it says of the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from joserfc.jwk import RSAKey
from tidelog import Admin, SaslToken
from tidelog import Producer as TidelogProducer
from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.oauthbearer import INVALID_TOKEN, parse_bearer
from tidelog_node.authentication.authentication import Authentication, AuthenticationRules
from tidelog_node.authentication.bearer_tokens import BearerTokens, TokenRules
from tidelog_node.authentication.exchanges import Mechanisms
from tidelog_node.authentication.password_checks import PasswordChecks
from tidelog_node.requests.session import Session

from tests.node.authentication.sasl_server import SASL, LoginList, users_with
from tests.support.acls import READ, TOPIC, WRITE, creation
from tests.support.forged_tokens import FORGED
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, first_message
from tests.support.node_process import NodeProcess
from tests.support.peer import CLOSED, Peer
from tests.support.sasl_node import SECONDS_MAX, SaslNode
from tests.support.sasl_node import TOPIC as NAME

CANARY = "canaryclaim"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[SaslNode]:
    settings = {
        **issuer.settings,
        "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
        "listener.name.sasl.connections.max.reauth.ms": "3600000",
        "authorizer.class.name": "tidelog.acl",
        "super.users": "User:ANONYMOUS",
    }
    with SaslNode(tmp_path_factory.mktemp("node") / "node", **settings) as node:
        node.prepare()
        yield node


def authenticate(node: SaslNode, message: bytes) -> tuple[Any, Any]:
    """Return the node's answer, and the second one if the first refuses the token."""
    with closing(Peer("client", node.sasl_port)) as peer:
        peer.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
        answer = peer.call("sasl_authenticate", 2, auth_bytes=message)
        if not isinstance(answer, dict) or answer["auth_bytes"] != INVALID_TOKEN.encode():
            return answer, None
        return answer, peer.call("sasl_authenticate", 2, auth_bytes=b"\x01")


def log_in(node: SaslNode, token: str) -> tuple[Any, Any]:
    return authenticate(node, first_message(token))


def test_a_token_of_the_issuer_logs_its_user_in(node: SaslNode, issuer: Issuer) -> None:
    """For as long as it is valid, where sessions end."""
    answer, _ = log_in(node, issuer.token("alice", aud=["a", AUDIENCE]))
    assert answer["error_code"] == "none"
    assert 590_000 < answer["session_lifetime"] <= 600_000
    assert node.logins()[-1][1:] == ("User:alice", "OAUTHBEARER")
    long = issuer.token(exp=int(time.time()) + 10_000_000)
    assert log_in(node, long)[0]["session_lifetime"] == 3_600_000


async def test_a_session_ends_with_its_token_where_sessions_have_no_end(issuer: Issuer) -> None:
    """As in Kafka 4.1."""

    async def find_key(_: str | None) -> RSAKey:
        return issuer.key

    tokens = BearerTokens(TokenRules(ISSUER, (AUDIENCE,)), find_key, time.time)
    with ThreadPoolExecutor(1) as executor:
        checks = PasswordChecks(users_with, executor)
        authentication = Authentication(
            Session("127.0.0.1", 1, SASL),
            AuthenticationRules(mechanisms=("OAUTHBEARER",)),
            Mechanisms(users_with, checks, tokens=tokens),
            logins=LoginList(),
            now=time.monotonic,
        )
        authentication.begin("OAUTHBEARER", has_headers=True)
        await authentication.answer(first_message(issuer.token("alice")))
    assert 590_000 < authentication.session_ms <= 600_000


@pytest.mark.parametrize("name", FORGED)
def test_a_token_that_is_not_valid_is_refused_and_nothing_of_it_is_said(
    name: str, node: SaslNode, issuer: Issuer
) -> None:
    first, second = log_in(node, FORGED[name](issuer))
    assert first["error_code"] == "none"
    assert second["error_code"] == "sasl_authentication_failed"
    assert second["error_message"] == INVALID_TOKEN
    assert "alice" not in str(second)


def test_no_part_of_a_token_is_in_the_log(node: SaslNode, issuer: Issuer) -> None:
    for token in (issuer.token(CANARY * 9), issuer.token(iss=CANARY), issuer.token(sub=[CANARY])):
        log_in(node, token)
        for part in token.split("."):
            assert part not in node.log
    assert log_in(node, issuer.token(secret=CANARY))[0]["error_code"] == "none"
    lines = [line for line in node.log.splitlines() if CANARY in line]
    assert all("client authenticated" in line for line in lines)
    node.wait_logged("authentication failed, OAUTHBEARER: the token is")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 70_000 + b"\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 16_000,
    ],
)
def test_messages_of_another_form_are_refused_at_once(node: SaslNode, message: bytes) -> None:
    answer, second = authenticate(node, message)
    assert answer["error_code"] == "sasl_authentication_failed"
    assert second is None
    with pytest.raises(AuthenticationFailed):
        parse_bearer(message)


def test_extensions_are_ignored_and_a_name_must_be_that_of_the_token(
    node: SaslNode, issuer: Issuer
) -> None:
    token = issuer.token("al,ice")
    extended = f"n,,\x01auth=bearer  {token}\x01traceId=5\x01\x01".encode()
    assert authenticate(node, extended)[0]["error_code"] == "none"
    same = first_message(token, authorization_id="al=2Cice")
    assert authenticate(node, same)[0]["error_code"] == "none"
    other = first_message(token, authorization_id="bob")
    assert authenticate(node, other)[0]["error_code"] == "sasl_authentication_failed"


def test_a_refused_client_cannot_try_another_token(node: SaslNode, issuer: Issuer) -> None:
    with closing(Peer("client", node.sasl_port)) as peer:
        peer.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
        peer.call("sasl_authenticate", 2, auth_bytes=first_message("a.b.c"))
        good = first_message(issuer.token())
        answer = peer.call("sasl_authenticate", 2, auth_bytes=good)
        assert answer["error_code"] == "sasl_authentication_failed"
        assert peer.exchange(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff") == CLOSED


def test_a_live_session_goes_on_with_a_new_token_of_the_same_user(
    node: SaslNode, issuer: Issuer
) -> None:
    with closing(Peer("client", node.sasl_port)) as peer:

        def prove(token: str) -> Any:
            peer.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
            return peer.call("sasl_authenticate", 2, auth_bytes=first_message(token))

        assert prove(issuer.token("dora"))["error_code"] == "none"
        again = prove(issuer.token("dora", exp=int(time.time()) + 100))
        assert 90_000 < again["session_lifetime"] <= 100_000
        time.sleep(1)  # A client may not begin more often.
        assert prove(issuer.token("eve"))["error_code"] == "sasl_authentication_failed"


# -- clients --


def settings(node: SaslNode, token: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 600),
    }


def test_groups_of_a_token_have_the_rights_of_their_acls(node: SaslNode, issuer: Issuer) -> None:
    """Through librdkafka. A user without the group has none."""
    admin = Peer("admin", node.port)
    for operation in (READ, WRITE):
        acl = creation(NAME, resource_type=TOPIC, operation=operation, principal="Group:sales")
        admin.call("create_acls", 3, creations=[acl])
    admin.close()

    def produce(token: str) -> list[str]:
        errors: list[str] = []
        producer = Producer({**settings(node, token), "message.timeout.ms": 8_000})
        producer.produce(NAME, b"x", on_delivery=lambda error, _: errors.append(str(error)))
        producer.flush(SECONDS_MAX)
        return errors

    assert produce(issuer.token("bob", groups=["sales", "other"])) == ["None"]
    assert "authorization failed" in produce(issuer.token("bob"))[0].lower()
    assert produce(issuer.token("eve", groups="sales")) == ["None"]


async def test_the_sdk_logs_in_by_tokens_that_a_function_returns(
    node: SaslNode, issuer: Issuer
) -> None:
    async def anew() -> str:
        return issuer.token("frank", groups=["sales"])

    async with TidelogProducer(node.sasl_address, sasl=SaslToken(anew)) as producer:
        await (await producer.send(NAME, b"x"))
    assert ("User:frank", "OAUTHBEARER") in [login[1:] for login in node.logins()]
    wrong = SaslToken(lambda: issuer.token(aud="elsewhere"))
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        async with Admin(node.sasl_address, sasl=wrong) as admin:
            await admin.list_topics()
    with pytest.raises(AuthenticationFailed, match="returned something else"):
        async with Admin(node.sasl_address, sasl=SaslToken(lambda: "a b")) as admin:
            await admin.list_topics()


# -- starting --


@pytest.mark.parametrize("missing", ["expected.issuer", "expected.audience", "jwks.endpoint.url"])
def test_a_node_that_could_take_anybodys_token_does_not_start(
    missing: str, tmp_path: Path, issuer: Issuer
) -> None:
    """CVE-2026-33557: Kafka's validator took any token if nothing was set."""
    given = {
        **issuer.settings,
        "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER",
    }
    del given[f"sasl.oauthbearer.{missing}"]
    node = SaslNode(tmp_path / "node", **given)
    with pytest.raises(RuntimeError, match="ended before it was ready"), node:
        pass
    node.wait_logged(f"OAUTHBEARER needs sasl.oauthbearer.{missing}")


def test_an_address_that_others_can_read_along_is_refused(tmp_path: Path) -> None:
    config = {"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys"}
    node = NodeProcess(tmp_path / "node", config=config)
    with pytest.raises(RuntimeError, match="ended before it was ready"), node:
        pass
    node.wait_logged("must be https://host/path, or file:/path")
