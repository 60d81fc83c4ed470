"""The server's side of SCRAM, beside the RFC, another implementation and hostile clients."""

from __future__ import annotations

import base64
import gc
import hashlib
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import scramp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidelog_core.errors import AuthenticationFailed, ErrorCode
from tidelog_core.security.scram import ScramServer
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    combine,
    keyed_hash,
    salt_password,
)
from tidelog_core.security.scram_messages import MESSAGE_SIZE_BYTES_MAX, escaped_name

from tests.support.scram_users import Users, stored

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
KEYS = {mechanism: stored("secret", mechanism) for mechanism in ScramMechanism}
USERS = {("alice", mechanism): KEYS[mechanism] for mechanism in ScramMechanism}
NONCE = "server-nonce"
# Every name that a message can have: ASCII but NUL.
names = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=60)


def server(users: Users | None = None, mechanism: ScramMechanism = SHA_256) -> ScramServer:
    return ScramServer(mechanism, users or Users(USERS), nonce=NONCE)


def final_message(
    first: bytes,
    challenge: bytes,
    password: str = "secret",
    *,
    header: bytes = b"n,,",
    change: Callable[[bytes], bytes] = lambda without_proof: without_proof,
) -> bytes:
    """Return the client's second message, with a proof over ``without_proof`` as changed."""
    nonce, salt, iterations = (part[2:] for part in challenge.split(b",")[:3])
    salted = salt_password(
        SHA_256, password, salt=base64.b64decode(salt), iterations=int(iterations)
    )
    client_key = keyed_hash(SHA_256, salted, b"Client Key")
    without_proof = change(b"c=%b,r=%b" % (base64.b64encode(header), nonce))
    signed = b",".join((first[len(header) :], challenge, without_proof))
    signature = keyed_hash(SHA_256, hashlib.sha256(client_key).digest(), signed)
    proof = combine(client_key, signature)
    return b"%b,p=%b" % (without_proof, base64.b64encode(proof))


def refuse(scram: ScramServer, message: bytes) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as refused:
        scram.answer(message)
    assert scram.user is None
    return refused.value


def test_exchange_of_rfc_7677_gives_its_messages() -> None:
    """Source: RFC 7677, section 3."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = Users({("user", SHA_256): stored("pencil", SHA_256, salt=salt)})
    scram = ScramServer(SHA_256, users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    challenge = scram.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = scram.answer(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram.user == "user"
    assert not scram.is_token


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_other_implementation_of_the_client_is_let_in(mechanism: ScramMechanism) -> None:
    scram = server(mechanism=mechanism)
    client = scramp.ScramClient([mechanism.value], "alice", "secret")
    client.set_server_first(scram.answer(client.get_client_first().encode()).decode())
    client.set_server_final(scram.answer(client.get_client_final().encode()).decode())
    assert scram.user == "alice"


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_client_is_let_in_by_another_implementation(mechanism: ScramMechanism) -> None:
    other = scramp.ScramMechanism(mechanism.value)
    keys = other.make_auth_info("secret", iteration_count=5000)
    theirs = other.make_server(lambda _: keys)
    client = ScramClient(mechanism, "alice", "secret", nonce="abc")
    theirs.set_client_first(client.first_message().decode())
    theirs.set_client_final(client.final_message(theirs.get_server_first().encode()).decode())
    client.check(theirs.get_server_final().encode())


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_stored_keys_are_those_of_another_implementation(mechanism: ScramMechanism) -> None:
    salt, stored_key, server_key, iterations = scramp.ScramMechanism(
        mechanism.value
    ).make_auth_info("secret", iteration_count=5000, salt=b"a salt of some size")
    ours = stored("secret", mechanism, salt=salt, iterations=iterations)
    assert (ours.stored_key, ours.server_key) == (stored_key, server_key)


@given(name=names)
@example(name="a=b,c")
@example(name="=2C=3D")
@example(name="n,r==,")
@settings(deadline=None)
def test_every_name_comes_through_its_escapes(name: str) -> None:
    users = Users({(name, SHA_256): KEYS[SHA_256]})
    scram = server(users)
    client = ScramClient(SHA_256, name, "secret", nonce="abc")
    client.check(scram.answer(client.final_message(scram.answer(client.first_message()))))
    assert scram.user == name


def test_client_refuses_a_name_that_scram_cannot_carry() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        ScramClient(SHA_256, "Zoë", "secret", nonce="abc")


def test_unknown_name_fails_like_a_wrong_password() -> None:
    users = Users(USERS)
    messages = []
    for name in ("alice", "nobody"):
        scram = server(users)
        first = b"n,,n=%b,r=abc" % name.encode()
        challenge = scram.answer(first)
        refused = refuse(scram, final_message(first, challenge, "wrong"))
        assert refused.code is ErrorCode.sasl_authentication_failed
        messages.append(str(refused))
        shape = [len(part) for part in challenge.split(b",")]
        assert shape == [len(part) for part in server().answer(b"n,,n=alice,r=abc").split(b",")]
        assert challenge == server(users).answer(first), "the same challenge each time"
    assert messages[0] == messages[1]


def test_unknown_name_takes_the_same_calls_as_a_known_one() -> None:
    """Counts calls: the time of an exchange would be noise on a busy machine."""
    by_name = []
    for name in ("alice", "nobody"):
        scram = server()
        first = b"n,,n=%b,r=abc" % name.encode()
        final = final_message(first, server().answer(first), "wrong")
        calls: Counter[str] = Counter()
        with counted(calls):
            scram.answer(first)
            refuse(scram, final)
        by_name.append(calls)
    assert by_name[0] == by_name[1]
    assert by_name[0]["hmac_digest"] > 0


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count the functions that are called, in Python and in C.

    Without those of a garbage collection, which may come at any time and calls hypothesis.
    """

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[argument.__name__] += 1

    gc.disable()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


def test_proof_that_fits_a_decoy_lets_nobody_in() -> None:
    """Even if someone could compute a decoy's keys."""
    users = Users(USERS)
    decoy = users.decoy("nobody", SHA_256)

    class Guessed(Users):
        def decoy(
            self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
        ) -> ScramCredential:
            return KEYS[mechanism]

    scram = server(Guessed({}))
    first = b"n,,n=nobody,r=abc"
    refuse(scram, final_message(first, scram.answer(first)))
    assert decoy.stored_key != KEYS[SHA_256].stored_key


def test_credential_of_too_few_iterations_lets_nobody_in() -> None:
    weak = stored("secret", SHA_256, iterations=ITERATIONS_MIN - 1)
    scram = server(Users({("alice", SHA_256): weak}))
    first = b"n,,n=alice,r=abc"
    refuse(scram, final_message(first, scram.answer(first)))


@pytest.mark.parametrize("authorization_id", [b"alice", b""])
def test_authorization_id_may_be_the_name_or_empty(authorization_id: bytes) -> None:
    header = b"n,a=alice," if authorization_id else b"n,,"
    scram = server()
    first = header + b"n=alice,r=abc"
    challenge = scram.answer(first)
    scram.answer(final_message(first, challenge, header=header))
    assert scram.user == "alice"


def test_another_authorization_id_is_refused() -> None:
    """CVE-2017-12610."""
    for name in (b"alice", b"nobody"):
        refused = refuse(server(), b"n,a=admin,n=%b,r=abc" % name)
        assert "different from username" in str(refused)


def test_authorization_id_is_compared_without_its_escapes() -> None:
    users = Users({("a,b", SHA_256): KEYS[SHA_256]})
    scram = server(users)
    header = b"n,a=a=2Cb,"
    first = header + b"n=a=2Cb,r=abc"
    scram.answer(final_message(first, scram.answer(first), header=header))
    assert scram.user == "a,b"


@pytest.mark.parametrize(("value", "is_token"), [(b"true", True), (b"TRUE", True), (b"no", False)])
def test_token_extension_is_parsed_and_signed(value: bytes, is_token: bool) -> None:
    users = Users(USERS, tokens={"alice": KEYS[SHA_256]})
    scram = server(users)
    first = b"n,,n=alice,r=abc,other=x=y,tokenauth=" + value
    scram.answer(final_message(first, scram.answer(first)))
    assert scram.is_token is is_token
    assert users.asked == [("alice", is_token)]


def test_user_is_no_token() -> None:
    scram = server(Users(USERS))
    first = b"n,,n=alice,r=abc,tokenauth=true"
    refuse(scram, final_message(first, scram.answer(first)))


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.replace(b"r=abc" + NONCE.encode(), b"r=abcother"),
        lambda message: message.replace(NONCE.encode(), NONCE[:-1].encode()),
        lambda message: message.replace(NONCE.encode(), b""),
        lambda message: message.replace(b"r=abc", b"r=xabc"),  # what Kafka takes: ``endsWith``
        lambda message: message.replace(b"c=biws", b"c=eSws"),  # "y,,"
        lambda message: message.replace(b"c=biws", b"c="),
    ],
)
def test_signed_message_of_another_exchange_is_refused(change: Callable[[bytes], bytes]) -> None:
    """CVE-2024-56128: the proof is right in itself; nonce or header are not."""
    scram = server()
    first = b"n,,n=alice,r=abc"
    challenge = scram.answer(first)
    refuse(scram, final_message(first, challenge, change=change))


def test_second_message_cannot_be_replayed() -> None:
    scram = server()
    first = b"n,,n=alice,r=abc"
    final = final_message(first, scram.answer(first))
    scram.answer(final)
    other = ScramServer(SHA_256, Users(USERS), nonce="other-nonce")
    other.answer(first)
    refuse(other, final)


def test_exchange_goes_on_after_neither_its_end_nor_a_refusal() -> None:
    ended = server()
    first = b"n,,n=alice,r=abc"
    final = final_message(first, ended.answer(first))
    ended.answer(final)
    with pytest.raises(AuthenticationFailed):
        ended.answer(final)
    refused = server()
    refuse(refused, b"nonsense")
    refuse(refused, first)
    late = server()
    challenge = late.answer(first)
    refuse(late, final_message(first, challenge, "wrong"))
    refuse(late, final_message(first, challenge))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,r=abc,n=alice",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=al=2,r=abc",
        b"n,,n=alice\0,r=abc",
        b"n,,n=Zo\xc3\xab,r=abc",
        b"n,,n=alice,r=a c",
        b"n,,n=alice,r=abc,",
        b"n,,n=alice,r=abc,1=2",
        b"n,,n=alice,r=abc,x=",
        b"n,,n=alice,r=abc\n",
        b"n,,n=" + b"a" * MESSAGE_SIZE_BYTES_MAX + b",r=abc",
    ],
)
def test_malformed_first_message_is_refused(first: bytes) -> None:
    refused = refuse(server(), first)
    assert "alice" not in refused.reason


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=abcserver-nonce",
        b"c=biws,r=abcserver-nonce,p=",
        b"c=biws,r=abcserver-nonce,p=AAAA",
        b"c=biws,r=abcserver-nonce,p=A",
        b"c=biws,r=abcserver-nonce,p=" + b"A" * 44,
        b"c=b\xff,r=abcserver-nonce,p=AAAA",
        b"c=biws,r=abcserver-nonce,p=AAAA,x=y",
    ],
)
def test_malformed_second_message_is_refused(final: bytes) -> None:
    scram = server()
    scram.answer(b"n,,n=alice,r=abc")
    refuse(scram, final)


_pieces = st.sampled_from(
    [
        *(b"n", b",", b"=", b"a=", b"n=alice", b"r=abc", b"=2C", b"=3D", b"m=x", b"x=y", b"\0"),
        *(b"c=biws", b"r=abcserver-nonce", b"p=AAAA", b"p=" + b"A" * 43 + b"=", b"n,,", b"\xff"),
        b"tokenauth=",
    ]
)
_hostile = st.one_of(st.binary(max_size=300), st.lists(_pieces, max_size=20).map(b"".join))


@given(first=_hostile, final=_hostile)
@settings(deadline=None)
def test_hostile_messages_get_nothing_but_a_refusal(first: bytes, final: bytes) -> None:
    for mechanism in ScramMechanism:
        for messages in ((first, final), (b"n,,n=alice,r=abc", final)):
            scram = server(mechanism=mechanism)
            try:
                for message in messages:
                    scram.answer(message)
            except AuthenticationFailed:
                assert scram.user is None
            else:
                pytest.fail("let in without a password")


@pytest.mark.parametrize(
    "piece", [b"=2C", b"=", b"a", b",x=y", b",p=AAAA", b",", b"AAAA", b"\xff", b",x=" + b"=" * 99]
)
def test_large_messages_take_little_time_and_memory(piece: bytes) -> None:
    for size in (MESSAGE_SIZE_BYTES_MAX - 40, 500_000):
        body = (piece * (size // len(piece) + 1))[:size]
        for first in (b"n,,n=alice,r=abc" + body, b"n,,n=" + body, b"n,a=" + body + b",n=a,r=b"):
            _bounded(server(), first)
        for final in (b"c=" + body, b"c=biws,r=abcserver-nonce" + body + b",", b"p=" + body):
            scram = server()
            scram.answer(b"n,,n=alice,r=abc")
            _bounded(scram, final)


def _bounded(scram: ScramServer, message: bytes) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        scram.answer(message)
    except AuthenticationFailed:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert time.thread_time() - began < 0.5
    assert peak_bytes < 300_000


def test_keys_and_passwords_are_in_no_repr() -> None:
    credential = KEYS[SHA_512]
    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert "secret" not in repr(ScramClient(SHA_256, "alice", "secret", nonce="abc"))


def test_client_refuses_a_server_without_the_keys() -> None:
    scram = server()
    client = ScramClient(SHA_256, "alice", "secret", nonce="abc")
    with pytest.raises(AuthenticationFailed):
        client.check(b"v=")
    final = scram.answer(client.final_message(scram.answer(client.first_message())))
    client.check(final)
    for forged in (b"v=" + base64.b64encode(bytes(32)), b"e=other-error", b"", b"v=", b"\xff"):
        with pytest.raises(AuthenticationFailed):
            client.check(forged)


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"r=abcxyz,s=c2FsdHNhbHRzYWx0,i=4095", "4095 iterations"),
        (b"r=abcxyz,s=c2FsdHNhbHRzYWx0,i=2000000", "2000000 iterations"),
        (b"r=abcxyz,s=c2FsdHNhbHRzYWx0,i=0", "form"),
        (b"r=abc,s=c2FsdHNhbHRzYWx0,i=4096", "nonce"),
        (b"r=xyz,s=c2FsdHNhbHRzYWx0,i=4096", "nonce"),
        (b"e=other-error", "form"),
    ],
)
def test_client_refuses_a_challenge_that_no_server_should_send(
    challenge: bytes, problem: str
) -> None:
    client = ScramClient(SHA_256, "alice", "secret", nonce="abc")
    with pytest.raises(AuthenticationFailed, match=problem):
        client.final_message(challenge)


def test_names_are_escaped_as_kafka_does() -> None:
    assert escaped_name("a=b,c") == b"a=3Db=2Cc"
