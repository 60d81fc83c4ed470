"""Passwords for commands: from a prompt, from stdin or from a file, never from an argument.

Everyone on the machine can read the arguments of a process, and shells keep them.
"""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import UsageError

PASSWORD_SIZE_BYTES_MAX = 1024

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password as its only line. By default stdin, with a prompt if it is"
        " a terminal.",
    ),
]


def read_password(user: str, file: Path | None) -> str:
    """Return the password for the user. Raises ``UsageError``, ``OSError``."""
    if file is not None:
        with file.open("rb") as opened:
            return _parse(opened.read(PASSWORD_SIZE_BYTES_MAX + 3))
    if not sys.stdin.isatty():
        return _parse(sys.stdin.buffer.read(PASSWORD_SIZE_BYTES_MAX + 3))
    password = getpass(f"password of {user}: ")
    if getpass("once more: ") != password:
        raise UsageError("the two passwords differ")
    return _checked(password)


def _parse(line: bytes) -> str:
    """Return the password that is the only line."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise UsageError("the password is not UTF-8") from None
    return _checked(text.removesuffix("\n").removesuffix("\r"))


def _checked(password: str) -> str:
    if not password:
        raise UsageError("the password is empty: give it on stdin or with --password-file")
    if len(password.encode()) > PASSWORD_SIZE_BYTES_MAX:
        raise UsageError(f"the password has more than {PASSWORD_SIZE_BYTES_MAX} bytes")
    if any(character in password for character in "\0\r\n"):
        raise UsageError("the password has more than one line, or a NUL")
    return password
