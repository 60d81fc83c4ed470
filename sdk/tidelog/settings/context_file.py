"""The file of contexts: how to reach each of several clusters.

    current = "production"

    [contexts.production]
    bootstrap.servers = "kafka.example.org:9093"
    security.protocol = "SASL_SSL"
    ssl.truststore.location = "authority.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "alice"
    sasl.password.location = "~/.secrets/alice"

It is ``~/.config/tidelog/config.toml``, or what ``TIDELOG_CONFIG`` names. A path that is not
absolute begins at the file's folder. Without the file there are no contexts.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import InvalidConfig
from tidelog.settings.given import Given, at_places, find_wrong_values
from tidelog.settings.names import NAMED
from tidelog.settings.properties_file import read_text

PATH_VARIABLE = "TIDELOG_CONFIG"
CONTEXT_VARIABLE = "TIDELOG_CONTEXT"
CURRENT, CONTEXTS = "current", "contexts"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
NAME_FORM = "1 to 100 letters, digits, - and _"
_LINE = re.compile(r"\s*([^=#\[\]]+?)\s*=")
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")


@dataclass(frozen=True, slots=True)
class ContextFile:
    """What the file has. ``problems`` are its wrong names and values, one sentence each."""

    path: Path
    contexts: Mapping[str, Mapping[str, Given]]
    current: str | None
    problems: tuple[str, ...] = ()
    warning: str | None = None  # Others can read a password in it.

    def checked(self) -> ContextFile:
        """Return this file. Raises ``InvalidConfig`` with all its problems."""
        if self.problems:
            raise InvalidConfig(self.problems)
        return self

    def context(self, name: str) -> Mapping[str, Given]:
        """Return a context's settings. Raises ``InvalidConfig`` if there is no such context."""
        if name not in self.contexts:
            known = ", ".join(self.contexts)
            others = f"its contexts are: {known}" if known else "`tidelog context add` makes one"
            raise InvalidConfig([f"{self.path} has no context {name!r}, {others}"])
        return self.contexts[name]


def context_path(environ: Mapping[str, str]) -> Path:
    """Return the file's path; it need not exist."""
    if named := environ.get(PATH_VARIABLE):
        return _expanded(named)
    return _expanded(environ.get("XDG_CONFIG_HOME") or "~/.config") / "tidelog" / "config.toml"


def is_context_name(name: str) -> bool:
    """Whether a context may have this name."""
    return _NAME.fullmatch(name) is not None


def read_contexts(environ: Mapping[str, str], *, may_be_missing: bool = False) -> ContextFile:
    """Return the environment's file of contexts; if there is none, it has no contexts.

    Raises ``InvalidConfig`` if it cannot be read, is no TOML, or is missing though the environment
    names it, unless it ``may_be_missing``.
    """
    path = context_path(environ)
    if not path.exists() and (may_be_missing or not environ.get(PATH_VARIABLE)):
        return ContextFile(path, {}, None)
    return parse_contexts(path, read_text(path), mode=path.stat().st_mode)


def parse_contexts(path: Path, text: str, *, mode: int = 0o600) -> ContextFile:
    """Return what the text has. Raises ``InvalidConfig`` if it is no TOML."""
    try:
        return _parsed(path, tomllib.loads(text), text, mode)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig([f"{path} is no TOML: {error}"]) from None
    except RecursionError:
        raise InvalidConfig([f"{path} is nested too deeply"]) from None


def _parsed(path: Path, document: Mapping[str, object], text: str, mode: int) -> ContextFile:
    lines = _lines_of(text)
    problems = [
        f"{_place(path, lines, (name,))}: {name} is not known, known are {CURRENT}, {CONTEXTS}"
        for name in document
        if name not in {CURRENT, CONTEXTS}
    ]
    tables = document.get(CONTEXTS, {})
    if not isinstance(tables, dict):
        problems.append(f"{path}: {CONTEXTS} must be tables: [{CONTEXTS}.name]")
        tables = {}
    contexts = {}
    for name, table in tables.items():
        if not is_context_name(name) or not isinstance(table, dict):
            place = _place(path, lines, (CONTEXTS, name))
            problems.append(f"{place}: context {name!r} must be a table named by {NAME_FORM}")
            continue
        contexts[name] = _settings(path, lines, name, table, problems)
    current = document.get(CURRENT)
    if current is not None and (not isinstance(current, str) or current not in contexts):
        known = ", ".join(contexts) or "there is none"
        place = _place(path, lines, (CURRENT,))
        problems.append(f"{place}: {CURRENT} must name a context: {known}")
        current = None
    return ContextFile(path, contexts, current, tuple(problems), _warning(path, contexts, mode))


def _settings(
    path: Path,
    lines: Mapping[tuple[str, ...], int],
    context: str,
    table: Mapping[str, object],
    problems: list[str],
) -> dict[str, Given]:
    settings = {}
    for name, value in _flat(table).items():
        place = _place(path, lines, (CONTEXTS, context, *name.split(".")))
        text = _text(value)
        if text is None:
            problems.append(f"{place}: {name} must be a text in quotes")
            continue
        if name in NAMED and NAMED[name].is_path:
            text = str(path.absolute().parent / _expanded(text))
        settings[name] = Given(text, place)
    values = {name: given.value for name, given in settings.items()}
    problems += at_places(find_wrong_values(values, is_closed=True), settings)
    return settings


def _expanded(text: str) -> Path:
    """Return the path with the home of its user in place of ``~``, if there is one."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values under their dotted names: ``bootstrap.servers`` is a table in TOML."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return value if isinstance(value, str) else None


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the lines of tables and names, as far as each has a line of its own."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.fullmatch(line)) is not None:
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif (name := _LINE.match(line)) is not None:
            lines.setdefault((*table, *_parts(name[1])), number)
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    """Return the parts of a name; those in quotes have dots of their own, and are cut there too."""
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _place(path: Path, lines: Mapping[tuple[str, ...], int], name: tuple[str, ...]) -> str:
    line = lines.get(name)
    return str(path) if line is None else f"{path}, line {line}"


def _warning(path: Path, contexts: Mapping[str, Mapping[str, Given]], mode: int) -> str | None:
    names = (name for settings in contexts.values() for name in settings)
    if not mode & stat.S_IROTH or not any(n in NAMED and NAMED[n].is_secret for n in names):
        return None
    return f"everyone on this machine can read the passwords in {path}: chmod 600 {path}"
