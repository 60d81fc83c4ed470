"""``tidelog context``: the clusters that commands and the SDK reach by a name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.context_names import complete_context
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import Json, chosen, parse_settings
from tidelog_cli.output import note, print_json, print_rows, print_table
from tidelog_cli.passwords import read_password

if TYPE_CHECKING:
    from tidelog.settings.context_file import ContextFile
    from tidelog.settings.given import Given

HIDDEN = "(hidden)"

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The context's name.", autocompletion=complete_context),
]


def list_(*, json: Json = False) -> None:
    """List the contexts; * is the one that counts now."""
    file = _read()
    now = _now(file)
    rows = [
        {
            "name": name,
            "current": "*" if name == now else "",
            "bootstrap_servers": _value(settings, "bootstrap.servers"),
            "protocol": _value(settings, "security.protocol"),
            "mechanism": _value(settings, "sasl.mechanism"),
            "user": _value(settings, "sasl.username"),
        }
        for name, settings in file.contexts.items()
    ]
    if json:
        print_json([{**row, "current": row["name"] == now} for row in rows])
    else:
        print_rows(rows, list(rows[0]) if rows else ("name", "current"), is_json=False)
    for problem in file.problems:
        note(problem)


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The context; by default the one that counts now.",
            autocompletion=complete_context,
        ),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Show how a context reaches its cluster, with environment variables, and where each is set.

    Passwords are not shown.
    """
    from tidelog.settings.given import at_places
    from tidelog.settings.resolving import resolve
    from tidelog.settings.security import find_problems

    options = chosen()
    found = resolve(os.environ, context=name or options.context, properties=options.command_config)
    settings = [
        {"name": setting, "value": _shown(setting, given), "from": given.place}
        for setting, given in sorted(found.settings.items())
    ]
    if json:
        print_json({"context": found.context, "settings": settings})
    else:
        print(f"context {found.context or '-'}")
        print_table(("name", "value", "from"), [list(row.values()) for row in settings])
    values = {setting: given.value for setting, given in found.settings.items()}
    for text in (*found.notes, *at_places(find_problems(values), found.settings)):
        note(text)


def use(name: Name) -> None:
    """Make a context the current one: commands reach its cluster by default."""
    from tidelog_cli.context_edits import with_current

    file = _read()
    file.context(name)
    _write(file, with_current(_text(file), name))
    if os.environ.get("TIDELOG_CONTEXT"):
        note("TIDELOG_CONTEXT is set, and counts before the current context")


def add(
    name: Name,
    *,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT,…", help="bootstrap.servers"),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Settings of a file as for --command-config, too."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting, such as sasl.mechanism=PLAIN."
        ),
    ] = None,
    ask_password: Annotated[
        bool,
        typer.Option(
            "--ask-password", help="Ask for the password of sasl.username, or read it from stdin."
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a context of this name.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
) -> None:
    """Add a context. Names are Kafka's, and metadata.store, object.store, data.dir, admin.url.

    A password is no argument, since everyone on the machine reads those: use --ask-password,
    --from, or --set sasl.password.location=FILE.
    """
    from tidelog.settings.context_file import NAME_FORM, is_context_name

    from tidelog_cli.context_edits import with_context, with_current, without_context

    if not is_context_name(name):
        raise UsageError(f"NAME must be {NAME_FORM}")
    file = _read(may_be_missing=True)
    text = _text(file)
    if name in file.contexts:
        if not replace:
            raise UsageError(f"there is a context {name!r}: --replace replaces it")
        is_current = file.current == name
        text = without_context(text, name)
        use = use or is_current
    settings = _settings(bootstrap, from_, parse_settings("--set", set_ or ()))
    if ask_password:
        user = settings.get("sasl.username")
        if user is None:
            raise UsageError("--ask-password needs --set sasl.username=…")
        settings["sasl.password"] = read_password(user, None)
    _check(settings)
    text = with_context(text, name, settings)
    _write(file, with_current(text, name) if use or not file.contexts else text)


def remove(name: Name) -> None:
    """Remove a context; the cluster stays as it is."""
    from tidelog_cli.context_edits import without_context

    file = _read()
    file.context(name)
    _write(file, without_context(_text(file), name))
    if file.current == name:
        note("no context is the current one now: 'tidelog context use' chooses another")


def _read(*, may_be_missing: bool = False) -> ContextFile:
    from tidelog.settings.context_file import read_contexts

    file = read_contexts(os.environ, may_be_missing=may_be_missing)
    if file.warning:
        note(file.warning)
    return file


def _now(file: ContextFile) -> str | None:
    return chosen().context or os.environ.get("TIDELOG_CONTEXT") or file.current


def _text(file: ContextFile) -> str:
    from tidelog.settings.properties_file import read_text

    return read_text(file.path) if file.path.exists() else ""


def _write(file: ContextFile, text: str) -> None:
    from tidelog_cli.context_edits import write

    write(file.path, text)


def _settings(bootstrap: str | None, path: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a new context, under their first names."""
    from tidelog.settings.given import in_java_words
    from tidelog.settings.names import NAMED
    from tidelog.settings.properties_file import read_properties

    for name in given:
        if name in NAMED and NAMED[name].is_secret:
            raise UsageError(f"{name} is no argument, which everyone here could read: see --help")
    # A client has other settings too, such as client.id; they are not for all programs.
    of_file = {} if path is None else read_properties(path)
    settings = {
        name: value for name, value in in_java_words(of_file).items() if name in NAMED
    } | in_java_words(given)
    if bootstrap is not None:
        settings["bootstrap.servers"] = bootstrap
    return {
        name: _absolute(value) if name in NAMED and NAMED[name].is_path else value
        for name, value in settings.items()
    }


def _absolute(path: str) -> str:
    return path if path.startswith("~") else str(Path(path).absolute())


def _check(settings: Mapping[str, str]) -> None:
    """Raise ``InvalidConfig``. What a login lacks may come from the environment later."""
    from tidelog.errors import InvalidConfig
    from tidelog.settings.given import find_wrong_values

    if not settings:
        raise UsageError("give --bootstrap, --from or --set")
    problems = [problem.text for problem in find_wrong_values(settings, is_closed=True)]
    if problems:
        raise InvalidConfig(problems)
    if "sasl.password" in settings and "sasl.password.location" in settings:
        raise CommandFailed("give one of sasl.password and sasl.password.location")


def _value(settings: Mapping[str, Given], name: str) -> str | None:
    from tidelog.settings.given import in_java_words

    words = in_java_words({given_as: given.value for given_as, given in settings.items()})
    return words.get(name)


def _shown(name: str, given: Given) -> str:
    from tidelog.settings.names import NAMED

    return HIDDEN if name in NAMED and NAMED[name].is_secret else given.value
