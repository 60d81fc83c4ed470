"""Delegation tokens: who may ask for them, what they say, and logins by them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.kafka.compare import Pair, compared
from tests.kafka.test_acls import AUTHORIZER
from tests.kafka.test_sasl import CONFIG as SASL_CONFIG
from tests.kafka.test_sasl import (
    KAFKA_CONFIG,
    OTHER_USER,
    PASSWORD,
    SCRAM,
    USER,
    SaslPeer,
    authenticate,
    create_users,
    ended,
    handshake,
    is_served,
)
from tests.support.acls import (
    ALLOW,
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DESCRIBE,
    DESCRIBE_TOKENS,
    acl_filter,
    creation,
)
from tests.support.acls import USER as USER_RESOURCE
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tools import kafka_broker
from tools.places import ToolAbsent
from tools.ports import free_port, free_ports

pytestmark = pytest.mark.slow  # a broker of its own; make test-kafka

HOUR_MS = 3_600_000
LIFETIME_MS, EXPIRY_MS = 6 * HOUR_MS, 2 * HOUR_MS
SECRET_KEY = "a secret key of 32 or so characters"
NEAR_MS = 60_000  # a test's own time
TOKENS = {
    "delegation.token.secret.key": SECRET_KEY,
    "delegation.token.max.lifetime.ms": str(LIFETIME_MS),
    "delegation.token.expiry.time.ms": str(EXPIRY_MS),
    "super.users": "User:ANONYMOUS",
}


class TokenPeer(SaslPeer):
    """A broker's listener with SASL; closes the other connections that it has made."""

    def __init__(self, name: str, port: int, open_port: int) -> None:
        super().__init__(name, port, open_port)
        self.last_answer: Any = None  # to the login
        self._others: list[Peer] = []

    def open_peer(self) -> Peer:
        """Return a new connection to the open listener."""
        self._others.append(super().open_peer())
        return self._others[-1]

    def another(self) -> TokenPeer:
        """Return a new connection to the listener with SASL."""
        peer = TokenPeer(self.name, self.port, self.open_port)
        self._others.append(peer)
        return peer

    def close(self) -> None:
        """Close all connections."""
        super().close()
        while self._others:
            self._others.pop().close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give brokers with tokens, users, and an authorizer that lets the open listener do all."""
    root = tmp_path_factory.mktemp("tokens")
    kafka_port, open_port, sasl_port = free_port(), free_ports(2), free_port()
    with ExitStack() as stack:
        try:
            kafka_open_port = stack.enter_context(
                kafka_broker.serve(
                    root / "kafka",
                    {
                        **KAFKA_CONFIG,
                        **TOKENS,
                        "connections.max.reauth.ms": "0",
                        "authorizer.class.name": AUTHORIZER,
                    },
                    second_listener=(kafka_port, kafka_port),
                )
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        config = {
            **SASL_CONFIG,
            **TOKENS,
            "connections.max.reauth.ms": "0",
            "authorizer.class.name": "tidelog.acl",
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},SECOND://127.0.0.1:{sasl_port}",
            "sasl.plain.without.tls.enable": "true",
        }
        stack.enter_context(NodeProcess(root / "tidelog", port=open_port, config=config))
        peers = Pair(
            TokenPeer("kafka", kafka_port, kafka_open_port),
            TokenPeer("tidelog", sasl_port, open_port),
        )
        for peer in (peers.kafka, peers.tidelog):
            assert isinstance(peer, TokenPeer)
            create_users(peer.open_peer())
        yield peers
        peers.close()


def user(peer: Peer, name: str = USER) -> TokenPeer:
    """Return a new connection of the user."""
    return by_scram(peer, name, PASSWORD)


def by_token(peer: Peer, token: dict[str, Any], mechanism: ScramMechanism = SCRAM) -> TokenPeer:
    """Return a new connection by a token."""
    password = base64.b64encode(token["hmac"]).decode()
    return by_scram(peer, token["token_id"], password, mechanism, is_token=True)


def by_scram(
    peer: Peer,
    name: str,
    password: str,
    mechanism: ScramMechanism = SCRAM,
    *,
    is_token: bool = False,
) -> TokenPeer:
    """Return a connection whose ``last_answer`` is that to its login."""
    assert isinstance(peer, TokenPeer)
    client = peer.another()
    handshake(client, mechanism)
    scram = ScramClient(mechanism, name, password, nonce="nonce", is_token=is_token)
    answer = authenticate(client, scram.first_message())
    if isinstance(answer, dict) and answer["error_code"] == "none":
        final = scram.final_message(bytes(client.last_token))  # type: ignore[attr-defined]
        answer = authenticate(client, final)
    client.last_answer = answer
    return client


def principals(*names: str, kind: str = "User") -> list[dict[str, str]]:
    return [{"principal_type": kind, "principal_name": name} for name in names]


def create(
    client: Peer,
    *,
    version: int = 3,
    renewers: list[dict[str, str]] | None = None,
    lifetime_ms: int = -1,
    owner: tuple[str | None, str | None] = (None, None),
) -> dict[str, Any]:
    fields: dict[str, Any] = {"renewers": renewers or [], "max_lifetime": lifetime_ms}
    if version >= 3:
        fields["owner_principal_type"], fields["owner_principal_name"] = owner
    answer: dict[str, Any] = client.call("create_delegation_token", version, **fields)
    return answer


def renew(client: Peer, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    return client.call("renew_delegation_token", version, hmac=hmac, renew_period=period_ms)


def expire(client: Peer, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    return client.call("expire_delegation_token", version, hmac=hmac, expiry_time_period=period_ms)


def describe(client: Peer, *owners: str, version: int = 3) -> Any:
    return client.call("describe_delegation_token", version, owners=principals(*owners) or None)


def settled(client: Peer, token: dict[str, Any], *, is_there: bool = True) -> None:
    """Wait until the broker knows the token, or no longer: Kafka's follows its controller."""
    found = client.until(
        lambda: [one["token_id"] for one in described(client)],
        lambda ids: (token["token_id"] in ids) is is_there,
    )
    assert (token["token_id"] in found) is is_there


def remove(client: Peer, token: dict[str, Any]) -> None:
    """Remove a token once the broker knows it: before, Kafka's controller may not."""
    settled(client, token)
    expire(client, token["hmac"])
    settled(client, token, is_there=False)


def described(client: Peer, *owners: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = describe(client, *owners)["tokens"]
    return found


def shown(answer: Any) -> Any:
    """Return an answer without what differs: times count from the issue, or from now."""
    if not isinstance(answer, dict):
        return answer
    found = dict(answer)
    issued = found.get("issue_timestamp", 0)
    if issued > 0:
        found["issue_timestamp"] = is_now(issued)
        for name in ("expiry_timestamp", "max_timestamp"):
            found[name] -= issued
    elif found.get("expiry_timestamp", -1) > 0:
        found["expiry_timestamp"] = from_now(found["expiry_timestamp"])
    for name in ("token_id", "hmac"):
        if name in found:
            found[name] = len(found[name])
    if "tokens" in found:
        tokens = sorted(found["tokens"], key=lambda one: (one["issue_timestamp"], one["token_id"]))
        found["tokens"] = [shown(one) for one in tokens]
    return found


def from_now(time_ms: int) -> str:
    """Return how far away a time is, as exactly as a test can know it."""
    minutes = round((time_ms - time.time() * 1000) / NEAR_MS)
    return f"in {minutes} min"


def is_now(time_ms: int) -> bool:
    return abs(time_ms - time.time() * 1000) < NEAR_MS


@compared
def test_tokens_are_created_renewed_described_and_expired(
    peer: Peer,
) -> Iterator[tuple[str, Any]]:
    """In every version."""
    alice = user(peer)
    yield "none", shown(describe(alice))
    for version in range(1, 4):
        token = create(alice, version=version, renewers=principals(OTHER_USER, "carol"))
        yield f"created {version}", shown(token)
        settled(alice, token)
        yield f"described {version}", shown(describe(alice, version=version))
        older = min(version, 2)
        yield f"renewed {version}", shown(renew(alice, token["hmac"], version=older))
        yield f"expires {version}", shown(expire(alice, token["hmac"], HOUR_MS, older))
        yield f"removed {version}", shown(expire(alice, token["hmac"], -1, older))
        settled(alice, token, is_there=False)
        yield f"gone {version}", shown(renew(alice, token["hmac"], version=older))


@compared
def test_lifetimes(peer: Peer) -> Iterator[tuple[str, Any]]:
    alice = user(peer)
    tokens = []
    for lifetime_ms in (-2, 0, 1000, HOUR_MS, 3 * HOUR_MS, 10 * LIFETIME_MS, 10**15):
        tokens.append(create(alice, lifetime_ms=lifetime_ms))
        yield f"lifetime {lifetime_ms}", shown(tokens[-1])
    for token in tokens:
        remove(alice, token)


@compared
def test_tokens_are_renewed_and_expire(peer: Peer) -> Iterator[tuple[str, Any]]:
    alice = user(peer)
    token = create(alice)
    settled(alice, token)
    for period_ms in (-2, 0, HOUR_MS, 3 * HOUR_MS, 10 * LIFETIME_MS, 10**15):
        yield f"renewed by {period_ms}", shown(renew(alice, token["hmac"], period_ms))
    for period_ms in (HOUR_MS, 3 * HOUR_MS, 10 * LIFETIME_MS, 10**15):
        yield f"expires after {period_ms}", shown(expire(alice, token["hmac"], period_ms))
    short = create(alice, lifetime_ms=HOUR_MS)
    settled(alice, short)
    yield "not beyond its end", shown(renew(alice, short["hmac"]))
    yield "nor so", shown(expire(alice, short["hmac"], 2 * HOUR_MS))
    yield "at once", shown(expire(alice, short["hmac"], 0))
    alice.until(
        lambda: expire(alice, short["hmac"], 0)["error_code"],
        lambda code: code == "delegation_token_expired",
    )
    yield "renewed late", shown(renew(alice, short["hmac"]))
    yield "expired late", shown(expire(alice, short["hmac"], HOUR_MS))
    yield "removed late", shown(expire(alice, short["hmac"], -1))
    yield "removed", shown(expire(alice, token["hmac"], -5))


@compared
def test_who_may_change_a_token(peer: Peer) -> Iterator[tuple[str, Any]]:
    alice, bob = user(peer), user(peer, OTHER_USER)
    own, shared = create(alice), create(alice, renewers=principals(OTHER_USER))
    settled(alice, shared)
    yield "not a renewer", shown(renew(bob, own["hmac"]))
    yield "nor for that", shown(expire(bob, own["hmac"]))
    yield "a renewer", shown(renew(bob, shared["hmac"]))
    yield "also for that", shown(expire(bob, shared["hmac"], HOUR_MS))
    yield "not there", shown(renew(alice, b"x" * 64))
    yield "empty", shown(renew(alice, b""))
    yield "not there either", shown(expire(alice, b"x"))
    yield "removed by a renewer", shown(expire(bob, shared["hmac"]))
    yield "removed", shown(expire(alice, own["hmac"]))


@compared
def test_who_may_ask(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Neither a stranger nor a client with a token."""
    assert isinstance(peer, TokenPeer)
    alice = user(peer)
    token = create(alice)
    settled(alice, token)
    clients = {"stranger": peer.open_peer(), "token": by_token(peer, token)}
    for label, client in clients.items():
        for version in range(1, 4):
            yield f"{label} creates {version}", shown(create(client, version=version))
        yield (
            f"{label} creates for another",
            shown(create(client, owner=("User", OTHER_USER), renewers=principals("g", kind="G"))),
        )
        yield f"{label} renews", shown(renew(client, token["hmac"]))
        yield f"{label} expires", shown(expire(client, token["hmac"]))
        yield f"{label} describes", shown(describe(client))
    expire(alice, token["hmac"])
    settled(alice, token, is_there=False)


@compared
def test_principals(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Renewers are users. A token for another user needs a right to."""
    alice = user(peer)
    yield "renewer", shown(create(alice, renewers=principals("g", kind="Group")))
    mixed = principals("bob") + principals("g", kind="Group")
    yield "one renewer", shown(create(alice, renewers=mixed))
    yield "another's", shown(create(alice, owner=("User", OTHER_USER)))
    yield "another's, renewers", shown(create(alice, owner=("User", OTHER_USER), renewers=mixed))
    own = create(alice, owner=("User", USER))
    yield "own", shown(own)
    unnamed = create(alice, owner=("User", ""))
    yield "without a name", shown(unnamed)
    again = create(alice, owner=(None, None), renewers=principals("r", "r"))
    yield "without a kind", shown(again)
    for token in (own, unnamed, again):
        remove(alice, token)


def allow(peer: TokenPeer, kind: int, name: str, operation: int) -> None:
    """Allow Alice the operation; return once the broker decides so."""
    admin = peer.open_peer()
    one = creation(name, resource_type=kind, operation=operation, permission_type=ALLOW)
    admin.call("create_acls", 3, creations=[one])
    admin.until(
        lambda: admin.call("describe_acls", 3, **acl_filter(name))["resources"],
        lambda found: any(acl["operation"] == operation for each in found for acl in each["acls"]),
    )
    admin.close()


@compared
def test_tokens_of_others(peer: Peer) -> Iterator[tuple[str, Any]]:
    """KIP-373: CREATE_TOKENS and DESCRIBE_TOKENS of a user, DESCRIBE of a token."""
    assert isinstance(peer, TokenPeer)
    alice, bob = user(peer), user(peer, OTHER_USER)
    first, second = create(bob), create(bob, lifetime_ms=HOUR_MS)
    settled(bob, first)
    settled(bob, second)
    yield "nothing", shown(describe(alice))
    yield "nothing of his", shown(describe(alice, OTHER_USER))
    allow(peer, DELEGATION_TOKEN, second["token_id"], DESCRIBE)
    found = alice.until(lambda: described(alice), bool)
    yield "one", [shown(one) for one in found]
    allow(peer, USER_RESOURCE, f"User:{OTHER_USER}", DESCRIBE_TOKENS)
    alice.until(lambda: described(alice), lambda tokens: len(tokens) == 2)
    yield "both", shown(describe(alice))
    yield "hers", shown(describe(alice, USER))
    yield "of both", shown(describe(alice, USER, OTHER_USER, "carol"))
    yield "of nobody", shown(alice.call("describe_delegation_token", 3, owners=[]))
    yield "may not be renewed", shown(renew(alice, first["hmac"]))
    allow(peer, USER_RESOURCE, f"User:{OTHER_USER}", CREATE_TOKENS)
    owner = ("User", OTHER_USER)
    alice.until(
        lambda: create(alice, owner=owner, renewers=principals("g", kind="G"))["error_code"],
        lambda code: code == "invalid_principal_type",
    )
    made = create(alice, owner=owner)
    yield "created", shown(made)
    settled(bob, made)
    yield "of the requester", sorted(one["issue_timestamp"] > 0 for one in described(alice, USER))
    yield "not renewed by the requester", shown(renew(alice, made["hmac"]))
    yield "renewed by the owner", shown(renew(bob, made["hmac"]))
    client = by_token(peer, made)
    yield "who has it is the owner", client.last_answer["error_code"]
    for token in (first, second, made):
        expire(bob, token["hmac"])
    peer.open_peer().call("delete_acls", 3, filters=[acl_filter()])


@compared
def test_logins_by_tokens(peer: Peer) -> Iterator[tuple[str, Any]]:
    """A session ends with the token, though ``connections.max.reauth.ms`` is not set."""
    alice = user(peer)
    yield "a password", alice.last_answer
    token = create(alice)
    settled(alice, token)
    for mechanism in ScramMechanism:
        client = by_token(peer, token, mechanism)
        answer = client.last_answer
        answer["session_lifetime"] = round(answer["session_lifetime"] / NEAR_MS)
        yield f"{mechanism}", answer
        yield f"{mechanism} is served", is_served(client)
    wrong = {**token, "hmac": token["hmac"][:-1] + b"?"}
    client = by_token(peer, wrong)
    yield "wrong HMAC", client.last_answer
    yield "wrong HMAC ended", ended(client)
    password = base64.b64encode(token["hmac"]).decode()
    client = by_scram(peer, token["token_id"], password)
    yield "not said to be a token", client.last_answer
    client = by_scram(peer, USER, PASSWORD, is_token=True)
    yield "a user said to be a token", client.last_answer
    expire(alice, token["hmac"])
    settled(alice, token, is_there=False)
    client = by_token(peer, token)
    yield "removed", client.last_answer
    yield "removed, ended", ended(client)


@pytest.mark.slow  # JVMs; the requests that the tool sends are compared above
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_tokens_are_managed_by_the_tool(pair: Pair, name: str, tmp_path: Path) -> None:
    """``kafka-delegation-tokens.sh``."""
    peer: Peer = getattr(pair, name)
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f" username={json.dumps(USER)} password={json.dumps(PASSWORD)};\n"
    )
    tool = (
        *("org.apache.kafka.tools.DelegationTokenCommand", "--command-config", str(properties)),
        *("--bootstrap-server", f"127.0.0.1:{peer.port}"),
    )
    renewer = ("--renewer-principal", f"User:{OTHER_USER}")
    out = kafka_broker.run_tool(*tool, "--create", "--max-life-time-period", "-1", *renewer)
    row = out.strip().splitlines()[-1].split()
    hmac = row[1]
    assert row[2:5] == [f"User:{USER}", f"User:{USER}", f"[User:{OTHER_USER}]"]
    alice = user(peer)
    alice.until(lambda: described(alice), bool)
    owner = ("--owner-principal", f"User:{USER}")  # without one the tool asks for none
    assert hmac in kafka_broker.run_tool(*tool, "--describe", *owner)
    out = kafka_broker.run_tool(*tool, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "Completed renew operation" in out
    out = kafka_broker.run_tool(*tool, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "Completed expire operation" in out
    assert alice.until(lambda: described(alice), lambda tokens: not tokens) == []
