"""Writes ``docs/cli.md`` from the commands: ``python -m tools.cli_reference``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer.main
from tidelog_cli.commands import app
from tidelog_cli.storage.jobs import SPARK_JOBS, is_spark_job

from tools.places import ROOT

PAGE = ROOT / "docs" / "cli.md"
_BEGIN = """\
# Commands

Every command with its arguments and options. `make docs` generates this page from the commands, and
`tidelog COMMAND --help` shows the same. `tidelog --install-completion` makes the shell complete
commands, topics and groups.

- Options of all commands, such as `--context` and `--command-config`, come before the command;
  [contexts.md](contexts.md) says how addresses and logins are found.
- Results go to stdout, all else to stderr. `--json` prints results for programs.
- The exit status is 0 for done, 1 for a failure, 2 for wrong arguments, and 130 after Ctrl-C. A
  command that has others says so.

"""


def cli_page() -> str:
    """Return the page."""
    root = typer.main.get_command(app)
    parts = [_BEGIN, "## tidelog\n\n", *_table(root)]
    parts += _commands(root, "tidelog")
    return "".join(parts).rstrip() + "\n"


def _commands(group: Any, path: str) -> Iterator[str]:
    """Yield the sections of a group's commands, in the order of their names."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        whole = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, whole)
            continue
        yield f"## {whole}\n\n"
        described = spark_program(name) if is_spark_job(command) else command
        parts = _help(described).split("\n\n")
        yield "\n\n".join(" ".join(part.split()) for part in parts) + "\n\n"
        yield from _table(described, command)


def spark_program(name: str) -> Any:
    """Return the command of a Spark job's program, which has the job's own options."""
    from tidelog_cli.spark_jobs.command_line import program_of

    module = import_module(f"{SPARK_JOBS}.{name}")
    program: Any = typer.main.get_command(program_of(name, getattr(module, f"{name}_command")))
    return program.commands[name]


def _help(command: Any) -> str:
    text: str = command.help or ""
    return text.partition("\f")[0].strip()


def _table(*commands: Any) -> Iterator[str]:
    """Yield the rows of the parameters; one that two commands share comes once."""
    parameters = {one.name: one for command in commands for one in command.params}
    rows = [_row(one) for one in parameters.values() if not one.hidden]
    if rows:
        yield "| | | default |\n|---|---|---|\n"
        yield from rows
        yield "\n"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.metavar:
            names += f" {parameter.metavar}"
    text = (parameter.help or "").replace("|", "\\|")
    variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()
    if variables:
        text += f" Also {', '.join(f'`{name}`' for name in variables)}."
    return f"| {names} | {text} | {_default(parameter)} |\n"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value in (None, False, "", ()) or callable(value):
        return ""
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(cli_page())
