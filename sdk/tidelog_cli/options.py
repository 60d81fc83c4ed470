"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.context_names import complete_context
from tidelog_cli.failures import UsageError

# Empty: the addresses are those of ``connecting.connection``.
DEFAULT_BOOTSTRAP = ""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=["TIDELOG_BOOTSTRAP_SERVERS", "TIDELOG_BOOTSTRAP"],
        metavar="HOST:PORT,…",
        help="Addresses to connect to first, as host:port,…",
        show_default="those of the context, or localhost:9092",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the options before the command say of how to reach the cluster."""

    context: str | None = None
    command_config: Path | None = None


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from tidelog_cli.version import version_line

        print(version_line())
        raise typer.Exit


_CHOSEN: ContextVar[Chosen | None] = ContextVar("how to reach the cluster", default=None)


def choose_cluster(
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The cluster: a context of 'tidelog context list'. By default TIDELOG_CONTEXT,"
            " or the current one.",
            show_default=False,
            autocompletion=complete_context,
        ),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="TIDELOG_COMMAND_CONFIG",
            help="How to connect: a file with Kafka's names, such as security.protocol.",
            show_default=False,
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
    _CHOSEN.set(Chosen(context, command_config))


def chosen() -> Chosen:
    """Return the options that preceded the command."""
    return _CHOSEN.get() or Chosen()


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
