"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import UsageError

DEFAULT_BOOTSTRAP = "localhost:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT,…",
        help="Addresses to connect to first, as host:port,…",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnlyTopics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Only these topics; all by default."),
]


_COMMAND_CONFIG: ContextVar[Path | None] = ContextVar("command config", default=None)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from tidelog_cli.version import version_line

        print(version_line())
        raise typer.Exit


def take_command_config(
    path: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="TIDELOG_COMMAND_CONFIG",
            metavar="FILE",
            help="How to connect: a file with Kafka's names, such as security.protocol.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version of Tidelog and Python, and whether it is compiled.",
        ),
    ] = False,
) -> None:
    """Note the options that precede a command."""
    _COMMAND_CONFIG.set(path)


def command_config() -> Path | None:
    """Return the file that ``--command-config`` gives to the command."""
    return _COMMAND_CONFIG.get()


def require_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ``UsageError`` if the option does not have this value."""
    if value not in allowed:
        raise UsageError(f"{option} must be one of {', '.join(allowed)}")


def parse_pair(option: str, text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``. Raises ``UsageError``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{option} {text!r} must be NAME=VALUE")
    return name, value


def parse_settings(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse several ``NAME=VALUE``; spaces around both are removed. Raises ``UsageError``."""
    pairs = (parse_pair(option, text) for text in texts)
    return {name.strip(): value.strip() for name, value in pairs}
