"""The SDK and the command manage delegation tokens, and log in by them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode
from tidelog import Admin, Consumer, Producer, Sasl, TopicPartition
from tidelog.errors import (
    AuthenticationFailed,
    DelegationTokenAuthDisabled,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    InvalidConfig,
    InvalidPrincipalType,
    error_for,
)
from tidelog.settings.security import connection_settings

from tests.support.sasl_node import PASSWORD, SECONDS_MAX, TOPIC, USER, SaslNode

KEY = "canary-of-a-secret-key"
HOUR_MS = 3_600_000
BOB = "bob"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    folder = tmp_path_factory.mktemp("tokens")
    settings = {
        "delegation_token_secret_key": KEY,
        "delegation_token_expiry_check_interval_ms": "200",
        "audit_enable": "true",
    }
    with SaslNode(folder / "node", **settings) as node:
        node.prepare()
        node.set_password(PASSWORD, BOB)
        yield node


def admin_of(node: SaslNode, user: str = USER) -> Admin:
    return Admin(node.sasl_address, sasl=Sasl("SCRAM-SHA-256", user, PASSWORD))


async def test_a_token_is_created_renewed_listed_and_expired(node: SaslNode) -> None:
    async with admin_of(node) as admin, admin_of(node, BOB) as bob:
        token = await admin.create_delegation_token(
            renewers=[f"User:{BOB}", BOB], max_lifetime_ms=2 * HOUR_MS
        )
        assert (token.owner, token.requester) == (f"User:{USER}", f"User:{USER}")
        assert token.renewers == (f"User:{BOB}",)
        assert token.sasl().is_delegation_token
        assert token.max_ms - token.issued_ms == 2 * HOUR_MS
        assert abs(token.issued_ms - time.time() * 1000) < 60_000
        assert repr(token.hmac) not in repr(token)
        expires_ms = await bob.renew_delegation_token(token.hmac, period_ms=HOUR_MS)
        assert expires_ms < token.max_ms
        (listed,) = await admin.describe_delegation_tokens([f"User:{USER}"])
        assert (listed.token_id, listed.hmac) == (token.token_id, token.hmac)
        assert (listed.expires_ms, listed.renewers) == (expires_ms, token.renewers)
        assert await admin.describe_delegation_tokens([]) == []
        assert await admin.describe_delegation_tokens(["User:nobody"]) == []
        soon_ms = await admin.expire_delegation_token(token.hmac, period_ms=60_000)
        assert soon_ms < expires_ms
        await bob.expire_delegation_token(token.hmac)
        with pytest.raises(DelegationTokenNotFound):
            await admin.renew_delegation_token(token.hmac)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_clients_log_in_by_a_token(node: SaslNode, mechanism: str) -> None:
    async with admin_of(node) as admin:
        token = await admin.create_delegation_token()
        before = len(node.logins())
        sasl = token.sasl(mechanism)
        async with Producer(node.sasl_address, sasl=sasl) as producer:
            sent = await producer.send_and_wait(TOPIC, mechanism.encode())
        async with Consumer(node.sasl_address, sasl=sasl) as consumer:
            partition = TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, sent.offset)
            assert (await anext(aiter(consumer))).value == mechanism.encode()
        logins = {(principal, by) for _, principal, by in node.logins()[before:]}
        assert logins == {(f"User:{USER}", mechanism)}
        async with Admin(node.sasl_address, sasl=sasl) as by_token:
            with pytest.raises(DelegationTokenRequestNotAllowed):
                await by_token.create_delegation_token()
            with pytest.raises(DelegationTokenRequestNotAllowed):
                await by_token.describe_delegation_tokens()
        await admin.expire_delegation_token(token.hmac)
        with pytest.raises(AuthenticationFailed, match="Authentication failed"):
            await Admin(node.sasl_address, sasl=sasl).start()


async def test_a_stranger_gets_no_token(node: SaslNode) -> None:
    async with Admin(node.address) as admin:
        with pytest.raises(DelegationTokenRequestNotAllowed):
            await admin.create_delegation_token()


async def test_a_token_of_another_user_and_its_errors(node: SaslNode) -> None:
    """Without an authorizer everyone may make tokens for everyone, as in Kafka."""
    async with admin_of(node) as admin:
        token = await admin.create_delegation_token(owner=f"User:{BOB}")
        assert (token.owner, token.requester) == (f"User:{BOB}", f"User:{USER}")
        with pytest.raises(DelegationTokenOwnerMismatch):
            await admin.renew_delegation_token(token.hmac)
        with pytest.raises(InvalidPrincipalType):
            await admin.create_delegation_token(renewers=["Group:g"])


def test_the_errors_say_what_to_do() -> None:
    disabled = error_for(ErrorCode.delegation_token_auth_disabled, None)
    assert isinstance(disabled, DelegationTokenAuthDisabled)
    assert "delegation.token.secret.key" in disabled.hint
    assert not disabled.retriable


def test_the_synchronous_admin_has_the_calls(node: SaslNode) -> None:
    with admin_of(node).sync() as admin:
        token = admin.create_delegation_token()
        assert token.token_id in {one.token_id for one in admin.describe_delegation_tokens()}
        admin.renew_delegation_token(token.hmac)
        admin.expire_delegation_token(token.hmac)


# -- settings --

JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.jaas.config": f'{JAAS} username="id" password="a+/=" tokenauth="true";'},
        {"sasl.jaas.config": f'{JAAS} username="id" password="a+/=" tokenauth=true;'},
        {"sasl.username": "id", "sasl.password": "a+/=", "sasl.tokenauth": "true"},
    ],
)
def test_settings_name_a_token_as_java_does(settings: dict[str, str]) -> None:
    found = connection_settings({**BASE, **settings})["sasl"]
    assert found == Sasl("SCRAM-SHA-256", "id", "a+/=", is_delegation_token=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"sasl.mechanism": "PLAIN", "sasl.tokenauth": "true"}, "by SCRAM, not by PLAIN"),
        ({"sasl.tokenauth": "yes"}, "true"),
    ],
)
def test_settings_that_no_token_can_have_are_refused(
    settings: dict[str, str], problem: str
) -> None:
    given = {**BASE, "sasl.username": "id", "sasl.password": "p", **settings}
    with pytest.raises(InvalidConfig, match=problem):
        connection_settings(given)


def test_a_password_is_no_token_by_default() -> None:
    found = connection_settings({**BASE, "sasl.username": "alice", "sasl.password": "p"})["sasl"]
    assert found == Sasl("SCRAM-SHA-256", "alice", "p")


# -- nothing shows a token --


async def test_tokens_are_in_no_log_and_their_hmacs_in_no_file(node: SaslNode) -> None:
    """The log is of DEBUG, and there is an audit topic; the secret key is nowhere, too."""
    async with admin_of(node) as admin:
        token = await admin.create_delegation_token()
        async with Admin(node.sasl_address, sasl=token.sasl()) as by_token:
            await by_token.list_topics()
        wrong = replace(token.sasl(), password=token.password[:-2])
        with pytest.raises(AuthenticationFailed):
            await Admin(node.sasl_address, sasl=wrong).start()
        await admin.renew_delegation_token(token.hmac)
        with pytest.raises(DelegationTokenNotFound):
            await admin.renew_delegation_token(token.hmac[:-1])
        configs = await admin.describe_configs("node", node.broker_id)
        key = configs["delegation.token.secret.key"]
        assert (key.value, key.is_sensitive) == (None, True)
        await admin.expire_delegation_token(token.hmac, period_ms=0)
        deadline = time.monotonic() + SECONDS_MAX
        while "expired delegation tokens removed" not in node.log:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        left = {one.token_id for one in await admin.describe_delegation_tokens()}
        assert token.token_id not in left
    node.wait_logged("DEBUG")
    leaks = [
        *(token.hmac, token.hmac.hex().encode(), base64.b64encode(token.hmac)),
        *(json.dumps(token.password).encode(), repr(token.hmac)[2:-1].encode(), KEY.encode()),
    ]
    for path in node.data_dir.parent.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(leak in data for leak in leaks), path
