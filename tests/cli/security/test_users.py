"""``tidelog user`` over a real node."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tidelog_cli.passwords import PASSWORD_SIZE_BYTES_MAX
from tidelog_cli.security import users
from tidelog_core.security import scram_credentials
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.support.command import COMMAND, SECONDS_MAX, Outcome, called, environment, tidelog

SHA_256, SHA_512 = users.MECHANISMS


def found(user: str, bootstrap: str) -> Any:
    """Return iterations by mechanism, ``None`` if there is no such user."""
    listed = called("user", "list", "--json", bootstrap=bootstrap).document
    return next((one["iterations"] for one in listed if one["user"] == user), None)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a password."""
    file = tmp_path / "secret"
    file.write_text("correct horse\n")
    return file


def run(command: str, user: str, *arguments: object, bootstrap: str, status: int = 0) -> Outcome:
    return called("user", command, user, *arguments, bootstrap=bootstrap, status=status)


def test_constants_are_those_of_the_core() -> None:
    assert tuple(mechanism.value for mechanism in ScramMechanism) == users.MECHANISMS
    assert users.ITERATIONS_MIN == scram_credentials.ITERATIONS_MIN
    assert users.ITERATIONS_MAX == scram_credentials.ITERATIONS_MAX


def test_user_is_added_altered_listed_and_removed(bootstrap: str, secret: Path) -> None:
    file = ("--password-file", secret)
    assert run("add", "u-one", *file, bootstrap=bootstrap).lines == [
        "user u-one added for SCRAM-SHA-256, SCRAM-SHA-512"
    ]
    assert found("u-one", bootstrap) == {SHA_256: 4096, SHA_512: 4096}
    again = run("add", "u-one", *file, bootstrap=bootstrap, status=1)
    assert "tidelog user alter" in again.errors
    run("alter", "u-one", *file, "--iterations", 8192, bootstrap=bootstrap)
    run("alter", "u-one", *file, "--mechanism", SHA_256, bootstrap=bootstrap)
    assert found("u-one", bootstrap) == {SHA_256: 4096, SHA_512: 8192}
    lines = called("user", "list", bootstrap=bootstrap).lines
    assert lines[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    assert ["u-one", SHA_512, "8192"] in [line.split() for line in lines]
    run("remove", "u-one", "--mechanism", SHA_512, bootstrap=bootstrap)
    assert found("u-one", bootstrap) == {SHA_256: 4096}
    run("remove", "u-one", bootstrap=bootstrap)
    assert found("u-one", bootstrap) is None


def test_users_that_are_not_there_are_named(bootstrap: str, secret: Path) -> None:
    for command, arguments in (("alter", ("--password-file", secret)), ("remove", ())):
        outcome = run(command, "u-nobody", *arguments, bootstrap=bootstrap, status=1)
        assert "u-nobody" in outcome.errors
        assert outcome.errors.count("\n") == 1
    assert found("u-nobody", bootstrap) is None


def test_password_comes_from_stdin(bootstrap: str) -> None:
    tidelog("user", "add", "u-stdin", bootstrap=bootstrap, given=b"secret\n")
    assert found("u-stdin", bootstrap) == {SHA_256: 4096, SHA_512: 4096}


@pytest.mark.parametrize(("second", "status"), [(b"secret\n", 0), (b"other\n", 2)])
def test_password_is_asked_for_twice_and_not_shown(
    bootstrap: str, second: bytes, status: int
) -> None:
    user = f"u-terminal-{status}"
    terminal, stdin = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "user", "add", user],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stdin,
        env=environment(bootstrap),
        start_new_session=True,
    )
    os.close(stdin)
    shown = b""
    for answer in (b"secret\n", second):
        while not shown.endswith(b": "):
            shown += os.read(terminal, 1000)
        os.write(terminal, answer)
        shown += b"\n"
    process.communicate(timeout=SECONDS_MAX)
    os.set_blocking(terminal, False)
    with contextlib.suppress(OSError):  # Nobody has written, or has the terminal open any more.
        shown += os.read(terminal, 1000)
    os.close(terminal)
    assert process.returncode == status, shown
    assert b"secret" not in shown
    assert b"differ" in shown if status else f"password of {user}: ".encode() in shown
    assert (found(user, bootstrap) is None) == (status != 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"one\ntwo\n", "more than one line"),
        (b"with\0nul", "NUL"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (PASSWORD_SIZE_BYTES_MAX + 1), "more than 1024 bytes"),
        (b"x" * 1_000_000, "more than 1024 bytes"),
    ],
)
def test_password_that_cannot_be_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    outcome = called("user", "add", "u", "--password-file", file, status=2)
    assert said in outcome.errors
    assert outcome.errors.count("\n") == 1


def test_wrong_command_lines_are_refused(tmp_path: Path, secret: Path) -> None:
    file = ("--password-file", secret)
    for arguments, said, status in (
        (("add", "u", *file, "--mechanism", "PLAIN"), "SCRAM-SHA-256, SCRAM-SHA-512", 2),
        (("add", "u", *file, "--iterations", 4095), "4096", 2),
        (("add", "u", *file, "--iterations", 16_385), "16384", 2),
        (("add", "u", "--password", "secret"), "--password", 2),
        (("add", "u", "secret"), "secret", 2),
        (("add", "u", "--password-file", tmp_path / "none"), "none", 1),
    ):
        outcome = called("user", *arguments, status=status)
        assert said in outcome.errors


def test_name_that_scram_cannot_carry_is_refused(bootstrap: str, secret: Path) -> None:
    outcome = run("add", "Zoë", "--password-file", secret, bootstrap=bootstrap, status=1)
    assert "ASCII" in outcome.errors
