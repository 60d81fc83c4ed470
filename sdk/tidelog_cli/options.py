"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        help="Nodes to ask first.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnlyTopics = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these; all by default.")
]


def require_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ``UsageError`` for a value that the option does not have."""
    if value not in allowed:
        raise UsageError(f"{option} must be one of {', '.join(allowed)}")


def parse_pair(option: str, text: str) -> tuple[str, str]:
    """Return what ``NAME=VALUE`` spells. Raises ``UsageError``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{option} {text!r} must be NAME=VALUE")
    return name, value


def parse_settings(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return the settings that ``NAME=VALUE`` spells each, without blanks around the two."""
    pairs = (parse_pair(option, text) for text in texts)
    return {name.strip(): value.strip() for name, value in pairs}
