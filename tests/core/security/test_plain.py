"""PLAIN against the stored SCRAM keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security import plain
from tidelog_core.security.plain import (
    KNOWN_PASSWORDS_MAX,
    KNOWN_SECONDS,
    MESSAGE_SIZE_BYTES_MAX,
    KnownPasswords,
    PlainLogin,
    check_password,
    parse_plain,
)
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.support.scram_users import Users, stored

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
USERS = Users(
    {
        ("alice", SHA_256): stored("secret", SHA_256),
        ("bob", SHA_512): stored("hunter2", SHA_512),
        ("carol", SHA_256): stored("old", SHA_256),
        ("carol", SHA_512): stored("new", SHA_512),
        ("zoë", SHA_256): stored("pässword", SHA_256),
    }
)
parts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("user", "password"),
    [
        *(("alice", "secret"), ("bob", "hunter2"), ("carol", "old"), ("carol", "new")),
        ("zoë", "pässword"),
    ],
)
def test_password_of_a_stored_credential_is_right(user: str, password: str) -> None:
    check_password(parse_plain(f"\0{user}\0{password}".encode()), USERS)


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "hunter2"), ("alice", "Secret"), ("bob", "secret"), ("nobody", "secret")],
)
def test_wrong_password_and_unknown_user_fail_with_the_same_message(
    user: str, password: str
) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        check_password(PlainLogin(user, password), USERS)
    assert str(refused.value) == "Authentication failed: Invalid username or password"
    assert refused.value.reason == "wrong user or password"


def test_check_looks_up_all_mechanisms_for_every_user() -> None:
    for user in ("alice", "bob", "nobody"):
        users = Users(USERS.users)
        with pytest.raises(AuthenticationFailed):
            check_password(PlainLogin(user, "wrong"), users)
        assert users.asked == [(user, False)] * len(ScramMechanism)


@given(user=parts, password=parts, is_authorized=st.booleans())
def test_message_of_any_name_and_password_is_read(
    user: str, password: str, is_authorized: bool
) -> None:
    authorization_id = user if is_authorized else ""
    login = parse_plain(f"{authorization_id}\0{user}\0{password}".encode())
    assert login == PlainLogin(user, password)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "expected 3 tokens, got 4"),
        (b"\0" * 100, "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"admin\0alice\0secret", "different from username"),  # CVE-2017-12610
        (b"\0al\xffice\0secret", "Invalid username or password"),
        (b"\0alice\0" + b"x" * MESSAGE_SIZE_BYTES_MAX, "Invalid username or password"),
    ],
)
def test_malformed_message_is_refused(message: bytes, problem: str) -> None:
    with pytest.raises(AuthenticationFailed, match=problem):
        parse_plain(message)


@given(st.binary(max_size=200))
@example(b"\0a\0\xed\xa0\x80")
def test_hostile_messages_get_nothing_but_a_refusal(message: bytes) -> None:
    try:
        login = parse_plain(message)
    except AuthenticationFailed as refused:
        assert "secret" not in refused.reason  # noqa: PT017
    else:
        assert message.endswith(b"\0%b\0%b" % (login.user.encode(), login.password.encode()))


def test_password_is_in_no_repr() -> None:
    assert repr(parse_plain(b"\0alice\0secret")) == "PlainLogin(user='alice')"


def test_known_password_is_known_for_some_minutes() -> None:
    clock = Clock()
    known = KnownPasswords(clock)
    login = PlainLogin("alice", "secret")
    assert not known.has(login, USERS)
    known.add(login, USERS)
    clock.now = KNOWN_SECONDS - 1
    assert known.has(login, USERS)
    clock.now = KNOWN_SECONDS
    assert not known.has(login, USERS)


def test_known_password_is_of_one_user_and_of_the_stored_keys() -> None:
    known = KnownPasswords(Clock())
    known.add(PlainLogin("alice", "secret"), USERS)
    assert not known.has(PlainLogin("alice", "Secret"), USERS)
    assert not known.has(PlainLogin("alices", "ecret"), USERS)
    changed = stored("secret", SHA_256, salt=b"another salt")
    for users in (Users({}), Users({**USERS.users, ("alice", SHA_256): changed})):
        assert not known.has(PlainLogin("alice", "secret"), users)
    assert not KnownPasswords(Clock()).has(PlainLogin("alice", "secret"), USERS)


def test_known_passwords_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KNOWN_PASSWORDS_MAX <= 10_000
    monkeypatch.setattr(plain, "KNOWN_PASSWORDS_MAX", 3)
    known = KnownPasswords(Clock())
    logins = [PlainLogin(f"user-{number}", "secret") for number in range(5)]
    for login in logins:
        known.add(login, USERS)
    assert [known.has(login, USERS) for login in logins] == [False, False, True, True, True]


def test_expired_passwords_are_forgotten_when_others_come() -> None:
    clock = Clock()
    known = KnownPasswords(clock)
    for number in range(10):
        known.add(PlainLogin(f"user-{number}", "secret"), USERS)
    clock.now = 2 * KNOWN_SECONDS
    known.add(PlainLogin("alice", "secret"), USERS)
    assert len(known._expiries) == 1
