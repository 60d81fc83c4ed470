"""The commands of a page, and what is wrong with one of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer.main
from tidelog_cli.commands import app
from tidelog_cli.storage.jobs import is_spark_job

from tools.cli_reference import spark_program

_BLOCK = re.compile(r"^(?: {4,})(?:\w+ [^|]*\| )?(tidelog(?: [^\n#]*)?)", re.MULTILINE)
_SPAN = re.compile(r"`(tidelog(?: [^`]*)?)`")
_ROOT = typer.main.get_command(app)

# Their base class is not public under one name in every version of typer.
_COMMAND_LINE_ERRORS: type[Exception] = typer.BadParameter.__mro__[2]

Command = tuple[str, bool]  # its text, and whether it is complete


def commands_of(text: str) -> Iterator[Command]:
    """Yield the commands of blocks, which are complete, and those that a sentence names."""
    for found in _BLOCK.finditer(text):
        yield found[1].strip(), True
    for found in _SPAN.finditer(text):
        yield " ".join(found[1].split()), False


def problem_of(command: Command) -> str | None:
    """Return what is wrong with a command; None if its names, options and values are right.

    Nothing is run. A command that is not complete may lack arguments, and even its last name.
    """
    text, is_complete = command
    found: Any = _ROOT
    words = shlex.split(text)[1:]
    while hasattr(found, "commands"):
        while words and words[0].startswith("-"):
            names = [name for one in found.params for name in (*one.opts, *one.secondary_opts)]
            if words[0] not in names:
                return f"{text}: no option {words[0]}"
            del words[: 2 if words[0].startswith("--co") else 1]
        if not words:
            return f"{text}: a command is missing" if is_complete else None
        name = words.pop(0)
        if name not in found.commands:
            return f"{text}: no command {name}"
        found = found.commands[name]
    return _refusal(found, words, text, is_complete=is_complete)


def _refusal(command: Any, words: list[str], text: str, *, is_complete: bool) -> str | None:
    try:
        if is_complete:
            context = command.make_context("", words)
            if is_spark_job(command):
                spark_program(command.name).make_context("", context.args)
        else:
            context = command.make_context("", [], resilient_parsing=True)
            command.make_parser(context).parse_args(list(words))
    except _COMMAND_LINE_ERRORS as error:
        is_absent = str(error).endswith("does not exist.")  # a folder of the page's reader
        return None if is_absent else f"{text}: {error}"
    return None
