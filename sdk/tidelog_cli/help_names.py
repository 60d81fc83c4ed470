"""Names of values in the help: ``N`` and ``TEXT``, and nothing behind a flag.

The parser's own names are types of Python such as ``<int range>``, ``<bool>`` behind each flag,
and braces around arguments, which shells would take for theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand

NAMES: dict[type, str] = {int: "N", float: "NUMBER", Path: "PATH"}
_BRACES = re.compile(r"[{](.*?)(?:\.\.\.)?[}](?:\.\.\.)?")
_TWICE = re.compile(r"\[(\[.*\](?:\.\.\.)?)\](?:\.\.\.)?")


class Command(TyperCommand):
    """A command whose help has short names for values, and lines as long as the terminal's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.help is not None:
            paragraphs = cleandoc(self.help).split("\n\n")
            self.help = "\n\n".join(" ".join(one.split("\n")) for one in paragraphs)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters, ``--help`` too."""
        return named(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the parts of the usage line."""
        return [_in_usage(piece) for piece in super().collect_usage_pieces(ctx)]


class Commands(typer.Typer):
    """A group whose commands are of the class above."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Return a decorator that adds a command."""
        return super().command(name, cls=Command, **options)


def named(parameters: Iterable[Any]) -> list[Any]:
    """Give the values of the parameters their names, and return the parameters."""
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument":
            # The name of an argument says what it is; its type is beside the point.
            parameter.display_type_rich = lambda **_: None
        elif parameter.metavar is None:
            parameter.metavar = _name_of(parameter)
    return found


def _name_of(option: Any) -> str:
    annotation: Any = getattr(getattr(option, "type_descriptor", None), "annotation", str)
    for one in (annotation, *get_args(annotation)):
        if one in NAMES:
            return NAMES[one]
    return "TEXT"


def _in_usage(piece: str) -> str:
    if piece.startswith("{"):
        return _BRACES.sub(r"\1", piece) + ("..." if "..." in piece else "")
    return _TWICE.sub(r"\1", piece)
