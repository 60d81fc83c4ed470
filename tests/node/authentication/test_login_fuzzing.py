"""Frames that nobody should send, before and after a login, in the open and in TLS.

The node lives, its memory is bounded, nobody becomes somebody else, nothing is changed or shown,
and a client that behaves is served all the time.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from tests.node.authentication.login_frames import LoginFrames
from tests.support.batches import batch_of
from tests.support.broken_handshakes import broken
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.peer import CLOSED, Peer
from tests.support.sasl_node import PASSWORD, TOPIC, USER, SaslNode
from tests.support.waiting import eventually
from tools.ports import free_port

CANARY = b"canary-of-a-record"
GROWTH_BYTES_MAX = 64 * 1024 * 1024
SECONDS_MAX = 30.0
OTHER_USER = "root"
THREADS = 4
# Frames before a login, frames after one, and connections that break TLS.
SMALL, LARGE = (800, 100, 60), (700_000, 300_000, 20_000)


class FuzzedNode(SaslNode):
    """Has a listener with TLS too, and gives its users no rights."""

    def __init__(self, data_dir: Path, authority: Authority, issuer: Issuer) -> None:
        super().__init__(data_dir, **issuer.settings)
        self.tls_port = free_port()
        self.config["listeners"] += f",TLS://127.0.0.1:{self.tls_port}"
        self.config["listener.name.sasl.sasl.enabled.mechanisms"] += ",OAUTHBEARER"
        self.config |= {
            "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL",
            "ssl.keystore.location": str(authority.node_pem()),
            "authorizer.class.name": "tidelog.acl",
            "super.users": "User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": "0",
            "connections.max.reauth.ms": "3600000",
        }


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[FuzzedNode]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with FuzzedNode(folder / "node", authority, Issuer(folder / "keys.json")) as node:
        node.prepare()
        node.set_password("never used", OTHER_USER)
        with closing(Peer("admin", node.port)) as admin:
            assert admin.produce(TOPIC, batch_of(CANARY))["error_code"] == "none"
        with log_in(node):  # what a login loads is loaded
            pass
        yield node


@pytest.mark.parametrize(
    "counts",
    [
        SMALL,
        pytest.param(LARGE, marks=[pytest.mark.slow, pytest.mark.timeout(7_200)]),
    ],
    ids=["few", "a million"],
)
def test_no_frames_harm_the_node(
    node: FuzzedNode, authority: Authority, counts: tuple[int, int, int]
) -> None:
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    with closing(Peer("admin", node.port)) as admin:
        apis = served_versions(admin)
        topics = names(admin)
    files, rss_bytes = len(node.open_files()), node.rss_bytes()
    work = [share // THREADS for share in counts]
    errors: list[BaseException] = []

    def fuzz(number: int) -> None:
        random = Random(seed + number)
        frames = LoginFrames(random, users=(USER, OTHER_USER, "nobody"), apis=apis)
        try:
            for send, count in zip((strangers, users, tls_strangers), work, strict=True):
                send(node, authority, frames, random, count)
        except BaseException as error:  # told in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=fuzz, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    served = 0
    while any(thread.is_alive() for thread in threads):
        served += is_served(node)
    assert not errors, errors
    assert served > 1
    growth_bytes = node.rss_bytes() - rss_bytes
    print(f"{sum(counts)} frames, {served} logins of others, {growth_bytes / 2**20:.0f} MiB more")
    assert growth_bytes < GROWTH_BYTES_MAX
    eventually(lambda: len(node.open_files()) <= files + 2, "all are closed")
    assert "Traceback" not in node.log
    assert {principal for _, principal, _ in node.logins()} == {f"User:{USER}"}
    with closing(Peer("admin", node.port)) as admin:
        assert names(admin) == topics


# -- who sends --


def strangers(
    node: FuzzedNode, _: Authority, frames: LoginFrames, random: Random, count: int
) -> None:
    """Send frames on connections that have not logged in; nothing secret comes back."""
    while count > 0:
        conversation = frames.conversation()
        count -= len(conversation)
        with connected(node.sasl_port) as client:
            assert CANARY not in exchanged(client, conversation, random)


def users(node: FuzzedNode, _: Authority, frames: LoginFrames, random: Random, count: int) -> None:
    """Send frames on connections of a user who has no rights."""
    while count > 0:
        with log_in(node) as client:
            conversation = [
                frames.any_api() if random.random() < 0.6 else frame
                for frame in frames.conversation()
            ]
            count -= len(conversation)
            assert CANARY not in exchanged(client, conversation, random)


def tls_strangers(
    node: FuzzedNode, authority: Authority, frames: LoginFrames, random: Random, count: int
) -> None:
    """Send broken handshakes, and broken records and frames behind whole ones."""
    context = authority.client_context()
    hello = first_flight(context)
    for _ in range(count):
        with connected(node.tls_port) as client:
            flight = [broken(hello, random)]
            if random.random() < 0.6:
                with suppress(ConnectionError):
                    flight = records_behind_a_handshake(client, context, frames, random)
            assert CANARY not in exchanged(client, flight, random)


# -- how --


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS_MAX)


def exchanged(client: socket.socket, parts: list[bytes], random: Random) -> bytes:
    """Send the parts, together or one by one, and return what comes before the end, if waited for."""
    received = bytearray()
    how = random.randrange(4)
    with suppress(ConnectionError):
        for part in [b"".join(parts)] if how < 2 else parts:
            client.sendall(part)
        if how == 3:  # reset, with whatever the node was about to do
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        with suppress(OSError):  # It may be closed already.
            client.shutdown(socket.SHUT_WR)
        while data := client.recv(65_536):
            received += data
    return bytes(received)


def log_in(node: FuzzedNode) -> socket.socket:
    """Return a connection of the user."""
    with closing(Peer("client", node.sasl_port)) as peer:
        peer.call("sasl_handshake", 1, mechanism="PLAIN")
        token = f"\0{USER}\0{PASSWORD}".encode()
        answer = peer.call("sasl_authenticate", 2, auth_bytes=token)
        assert answer != CLOSED
        assert answer["error_code"] == "none", answer
        assert peer._socket is not None
        client, peer._socket = peer._socket, None
        client.settimeout(SECONDS_MAX)
        return client


def is_served(node: FuzzedNode) -> bool:
    """Return whether a client logs in and is answered."""
    with log_in(node) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        return client.recv(8)[4:] == struct.pack(">i", 7)


def first_flight(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def records_behind_a_handshake(
    client: socket.socket, context: ssl.SSLContext, frames: LoginFrames, random: Random
) -> list[bytes]:
    """Shake hands; return TLS records with frames, whole, cut, changed or of other types."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            client.sendall(outgoing.read())
            incoming.write(client.recv(65_536))
    sent: list[bytes] = []
    for frame in frames.conversation():
        step = random.choice((1, 100, 65_536))
        for start in range(0, min(len(frame), 40 * step), step):
            tls.write(frame[start : start + step])
        sent.append(outgoing.read())
    at = random.randrange(len(sent))
    match random.randrange(5):
        case 0:
            damaged = bytearray(sent[at])
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            sent[at] = bytes(damaged)
        case 1:
            kind = random.choice((0, 20, 21, 22, 23, 24, 255))
            data = random.randbytes(random.choice((0, 1, 2, 200, 16_640)))
            size = random.choice((len(data), 65_535))
            sent.insert(at, struct.pack(">BHH", kind, 0x0303, size) + data)
        case 2:
            del sent[at]
        case 3:
            sent[at] = b"".join(frames.conversation())  # in the open
        case _:
            pass
    return sent


def served_versions(peer: Peer) -> list[tuple[int, int]]:
    answer = peer.call("api_versions", 0)
    return [
        (one["api_key"], version)
        for one in answer["api_keys"]
        for version in range(one["min_version"], one["max_version"] + 1)
        if one["api_key"] or version >= 3  # older ones of Produce are advertised, not served
    ]


def names(peer: Peer) -> set[str]:
    return {topic["name"] for topic in peer.call("metadata", 12, topics=None)["topics"]}
