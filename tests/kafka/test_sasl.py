"""Listeners whose clients log in: the answers, their texts, and when the connection is closed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism, salt_password

from tests.kafka.compare import Pair, compared
from tests.support.node_process import NodeProcess
from tests.support.peer import CLOSED, Peer
from tools import kafka_broker
from tools.places import ToolAbsent
from tools.ports import free_port, free_ports

pytestmark = pytest.mark.slow  # a broker of its own; make test-kafka

USER, PASSWORD, OTHER_USER = "alice", "secret", "bob"
SCRAM = ScramMechanism.SCRAM_SHA_256
MECHANISMS = (*ScramMechanism, "PLAIN")
SALT = b"0123456789abcdef"
METADATA = 3
API_VERSIONS = 18
# Long enough that no session ends here; it lets clients authenticate again.
SESSION_MS = 3_600_000
LIST = ",".join(MECHANISMS)
PREFIX = "listener.name.second"
MODULES = "org.apache.kafka.common.security"
# Both have the same settings, but for Kafka's login modules: its PLAIN has users of its own.
CONFIG = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:SASL_PLAINTEXT",
    "connections.max.reauth.ms": str(SESSION_MS),
    "sasl.enabled.mechanisms": LIST,
}
_SCRAM_MODULE = f"{MODULES}.scram.ScramLoginModule required;"
KAFKA_CONFIG = CONFIG | {
    "listener.security.protocol.map": CONFIG["listener.security.protocol.map"]
    + ",CONTROLLER:PLAINTEXT",
    f"{PREFIX}.plain.sasl.jaas.config": (
        f"{MODULES}.plain.PlainLoginModule required"
        f' user_{USER}="{PASSWORD}" user_{OTHER_USER}="{PASSWORD}";'
    ),
    **{f"{PREFIX}.{name.lower()}.sasl.jaas.config": _SCRAM_MODULE for name in ScramMechanism},
}


class SaslPeer(Peer):
    """A broker's listener with SASL, which also knows the open one."""

    def __init__(self, name: str, port: int, open_port: int) -> None:
        super().__init__(name, port)
        self.open_port = open_port

    def open_peer(self) -> Peer:
        """Return a new connection to the open listener."""
        return Peer(self.name, self.open_port)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give the listeners with SASL of both brokers, and the users."""
    root = tmp_path_factory.mktemp("sasl")
    kafka_port, open_port, sasl_port = free_port(), free_ports(2), free_port()
    with ExitStack() as stack:
        try:
            kafka_open_port = stack.enter_context(
                kafka_broker.serve(
                    root / "kafka", KAFKA_CONFIG, second_listener=(kafka_port, kafka_port)
                )
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        config = CONFIG | {
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},SECOND://127.0.0.1:{sasl_port}",
            "sasl.plain.without.tls.enable": "true",
        }
        stack.enter_context(NodeProcess(root / "tidelog", port=open_port, config=config))
        peers = Pair(
            SaslPeer("kafka", kafka_port, kafka_open_port),
            SaslPeer("tidelog", sasl_port, open_port),
        )
        for peer in (peers.kafka, peers.tidelog):
            assert isinstance(peer, SaslPeer)
            create_users(peer.open_peer())
        yield peers
        peers.close()


def create_users(peer: Peer) -> None:
    """Create the users, and wait until the broker knows them."""
    upsertions = [
        {
            "name": user,
            "mechanism": mechanism.number,
            "iterations": 4096,
            "salt": SALT,
            "salted_password": salt_password(mechanism, PASSWORD, salt=SALT, iterations=4096),
        }
        for user in (USER, OTHER_USER)
        for mechanism in ScramMechanism
    ]
    for number in (0, 1):  # one mechanism of a user in a request
        peer.call("alter_user_scram_credentials", 0, deletions=[], upsertions=upsertions[number::2])
    peer.until(
        lambda: peer.call("describe_user_scram_credentials", 0, users=None)["results"],
        lambda users: sum(len(user["credential_infos"]) for user in users) == len(upsertions),
    )
    peer.close()


def handshake(peer: Peer, mechanism: str, version: int = 1) -> Any:
    """Return the answer, with the list in one order: Kafka's is that of a hash table."""
    answer = peer.call("sasl_handshake", version, mechanism=str(mechanism))
    if isinstance(answer, dict):
        answer["mechanisms"] = sorted(answer["mechanisms"])
    return answer


def authenticate(peer: Peer, token: bytes, version: int = 2) -> Any:
    """Return the answer with its text; tokens differ, so only whether there is one."""
    answer = peer.call("sasl_authenticate", version, auth_bytes=token)
    if isinstance(answer, dict):
        answer["text"] = answer["error_message"]
        peer.last_token = answer.pop("auth_bytes")  # type: ignore[attr-defined]
        answer["has_token"] = bool(peer.last_token)  # type: ignore[attr-defined]
    return answer


def log_in(
    peer: Peer,
    user: str = USER,
    password: str = PASSWORD,
    *,
    mechanism: ScramMechanism = SCRAM,
    version: int = 2,
) -> list[Any]:
    """Return every answer on the way, to the last one or to the end of the connection."""
    answers = [handshake(peer, mechanism)]
    scram = ScramClient(mechanism, user, password, nonce="a-nonce-of-the-client")
    answers.append(authenticate(peer, scram.first_message(), version))
    if isinstance(answers[-1], dict) and answers[-1]["error_code"] == "none":
        final = scram.final_message(bytes(peer.last_token))  # type: ignore[attr-defined]
        answers.append(authenticate(peer, final, version))
    return answers


def log_in_plain(
    peer: Peer, user: str = USER, password: str = PASSWORD, acting_as: str = ""
) -> list[Any]:
    return [
        handshake(peer, "PLAIN"),
        authenticate(peer, f"{acting_as}\0{user}\0{password}".encode()),
    ]


def is_served(peer: Peer) -> bool:
    """Return whether a request is answered that only known clients may send."""
    answer = peer.call("metadata", 12, topics=[])
    return isinstance(answer, dict)


def ended(peer: Peer) -> bool:
    """Return whether the broker closes the connection, and begin another one."""
    is_closed = peer.is_closed or peer.receive() == CLOSED
    peer.close()
    return is_closed


@compared
def test_users_log_in(peer: Peer) -> Iterator[tuple[str, Any]]:
    """With every mechanism and every version of SaslAuthenticate."""
    for mechanism in ScramMechanism:
        for version in range(3):
            yield f"{mechanism} {version}", log_in(peer, mechanism=mechanism, version=version)
            yield f"{mechanism} {version} served", is_served(peer)
            peer.close()
    yield "PLAIN", log_in_plain(peer)
    yield "PLAIN served", is_served(peer)
    peer.close()
    yield "own authorization id", log_in_plain(peer, acting_as=USER)
    yield "own authorization id served", is_served(peer)


@compared
def test_refusals(peer: Peer) -> Iterator[tuple[str, Any]]:
    for label, user, password in (("password", USER, "wrong"), ("user", "nobody", PASSWORD)):
        for mechanism in ScramMechanism:
            # Kafka refuses an unknown user one token earlier, so that clients can find out who is
            # a user.
            yield f"{label} {mechanism}", log_in(peer, user, password, mechanism=mechanism)[-1]
            yield f"{label} {mechanism} ended", ended(peer)
        yield f"{label} PLAIN", log_in_plain(peer, user, password)
        yield f"{label} PLAIN ended", ended(peer)
    yield "other authorization id", log_in_plain(peer, acting_as="root")
    yield "other authorization id ended", ended(peer)
    yield "other authorization id of SCRAM", handshake(peer, SCRAM)
    yield "its token", authenticate(peer, f"n,a=root,n={USER},r=nonce".encode())
    yield "its token ended", ended(peer)
    for label, token in (
        ("no user", b"\0\0password"),
        ("no password", b"\0alice\0"),
        ("two parts", b"alice\0secret"),
        ("four parts", b"\0a\0b\0c"),
        ("nothing", b""),
    ):
        handshake(peer, "PLAIN")
        yield f"PLAIN {label}", authenticate(peer, token)
        yield f"PLAIN {label} ended", ended(peer)
    for label, token in (("nonsense", b"nonsense"), ("nothing", b"")):
        handshake(peer, SCRAM)
        yield f"SCRAM {label}", authenticate(peer, token)
        yield f"SCRAM {label} ended", ended(peer)
    for name in ("GSSAPI", "scram-sha-256", ""):
        for version in range(2):
            yield f"mechanism {name} {version}", handshake(peer, name, version)
            yield f"mechanism {name} {version} ended", ended(peer)


@compared
def test_tokens_without_headers(peer: Peer) -> Iterator[tuple[str, Any]]:
    def raw(token: bytes) -> bytes | str:
        return peer.exchange(struct.pack(">i", len(token)) + token)

    yield "handshake", handshake(peer, "PLAIN", 0)
    yield "token", raw(f"\0{USER}\0{PASSWORD}".encode())
    yield "served", is_served(peer)
    peer.close()
    handshake(peer, "PLAIN", 0)
    yield "wrong", raw(b"\0alice\0wrong")
    peer.close()
    handshake(peer, SCRAM, 0)
    scram = ScramClient(SCRAM, USER, PASSWORD, nonce="mine")
    challenge = raw(scram.first_message())
    assert isinstance(challenge, bytes)
    last = raw(scram.final_message(challenge))
    assert isinstance(last, bytes)
    scram.check(last)
    yield "served after SCRAM", is_served(peer)


@compared
def test_requests_out_of_order(peer: Peer) -> Iterator[tuple[str, Any]]:
    def versions(version: int = 0) -> Any:
        answer = peer.call("api_versions", version)
        return answer if isinstance(answer, str) else answer["error_code"]

    yield "metadata first", is_served(peer)
    peer.close()
    yield "token first", authenticate(peer, b"token")
    peer.close()
    yield "versions", versions()
    yield "versions again", versions()
    peer.close()
    unsupported = peer.frame(API_VERSIONS, 99, b"", is_flexible=True)
    for number in range(3):
        answer = peer.exchange(unsupported)
        assert isinstance(answer, bytes)
        yield f"unsupported versions {number}", struct.unpack_from(">4xh", answer)
    yield "then versions", versions()
    yield "then metadata", is_served(peer)
    peer.close()
    handshake(peer, SCRAM)
    yield "handshake again", handshake(peer, SCRAM)
    yield "handshake again ended", ended(peer)
    handshake(peer, SCRAM)
    yield "metadata between", is_served(peer)
    peer.close()
    handshake(peer, SCRAM)
    yield "versions between", versions()
    peer.close()
    versions()
    yield (
        "a later version of the handshake",
        peer.exchange(peer.frame(17, 2, b"\x00\x00", is_flexible=False)),
    )
    peer.close()
    handshake(peer, SCRAM)
    yield (
        "a later version of the token",
        peer.exchange(peer.frame(36, 3, b"\x01\x00", is_flexible=True)),
    )


@compared
def test_sizes_of_frames(peer: Peer) -> Iterator[tuple[str, Any]]:
    for size in (0, -1, 524_289, 2**31 - 1, -(2**31)):
        yield f"{size}", peer.exchange(struct.pack(">i", size), timeout=1)
        peer.close()
    for size in (1, 7, 8, 100):
        yield f"{size} bytes of nothing", peer.exchange(struct.pack(">i", size) + bytes(size))
        peer.close()
    yield "half of the largest", peer.exchange(struct.pack(">i", 524_288) + bytes(9), timeout=0.3)


@compared
def test_sessions_are_renewed(peer: Peer) -> Iterator[tuple[str, Any]]:
    log_in(peer)
    yield "again", log_in(peer)
    yield "again served", is_served(peer)
    yield "within a second", handshake(peer, SCRAM)
    yield "its token", authenticate(peer, b"token")
    yield "still served", is_served(peer)
    peer.close()
    log_in(peer)
    yield "another user", log_in(peer, OTHER_USER)
    yield "another user ended", ended(peer)
    log_in(peer)
    yield "another mechanism", handshake(peer, "PLAIN")
    yield "its token is refused", authenticate(peer, f"\0{USER}\0{PASSWORD}".encode())
    peer.close()
    log_in(peer)
    yield "an unknown mechanism", handshake(peer, "GSSAPI")
    yield "an unknown mechanism ended", ended(peer)
    log_in(peer)
    yield "wrong password", log_in(peer, password="wrong")
    yield "wrong password ended", ended(peer)
    log_in(peer)
    handshake(peer, SCRAM)
    yield "metadata between", is_served(peer)


@compared
def test_an_open_listener_wants_no_login(peer: Peer) -> Iterator[tuple[str, Any]]:
    assert isinstance(peer, SaslPeer)
    client = peer.open_peer()
    for number in range(2):
        yield f"handshake {number}", handshake(client, SCRAM)
        yield f"token {number}", authenticate(client, b"token")
    yield "served", is_served(client)
    answer = client.call("api_versions", 3, client_software_name="x", client_software_version="1")
    ranges = {
        key["api_key"]: (key["min_version"], key["max_version"]) for key in answer["api_keys"]
    }
    yield "versions", (ranges[17], ranges[36])
    client.close()
    answer = peer.call("api_versions", 3, client_software_name="x", client_software_version="1")
    listed = {
        key["api_key"]: (key["min_version"], key["max_version"]) for key in answer["api_keys"]
    }
    yield "the same before a login", listed == ranges
