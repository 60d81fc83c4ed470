"""Changes to the text of the file of contexts, which keep what people have written in it.

A change is made to the lines, and the new text is parsed: if that does not give exactly what it
should, a person has to edit the file. It is replaced as a whole, readable by this user only.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.settings.context_file import CONTEXTS, CURRENT

from tidelog_cli.failures import CommandFailed

_MODE = 0o600
_HEADER = re.compile(r"\s*\[")
_CURRENT_LINE = re.compile(rf"\s*{CURRENT}\s*=")


def with_context(text: str, name: str, settings: Mapping[str, str]) -> str:
    """Return the text with a new context at its end. Raises ``CommandFailed``."""
    wanted = _document(text)
    nested: dict[str, Any] = {}
    for setting, value in settings.items():
        *path, last = setting.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    wanted.setdefault(CONTEXTS, {})[name] = nested
    lines = [f"{setting} = {_quoted(value)}" for setting, value in settings.items()]
    before = text.rstrip("\n")
    added = "\n".join([f"[{CONTEXTS}.{name}]", *lines]) + "\n"
    return _checked(f"{before}\n\n{added}" if before else added, wanted)


def without_context(text: str, name: str) -> str:
    """Return the text without the context, and with no current one if it was that."""
    wanted = _document(text)
    del wanted[CONTEXTS][name]
    if not wanted[CONTEXTS]:
        del wanted[CONTEXTS]
    if wanted.get(CURRENT) == name:
        del wanted[CURRENT]
        text = "".join(line for line in _lines(text) if not _CURRENT_LINE.match(line))
    mine = re.compile(rf"\s*\[\s*{CONTEXTS}\s*\.\s*{re.escape(name)}\s*[.\]]")
    kept, is_mine = [], False
    for line in _lines(text):
        if _HEADER.match(line):
            is_mine = mine.match(line) is not None
        if not is_mine:
            kept.append(line)
    return _checked("".join(kept), wanted)


def with_current(text: str, name: str) -> str:
    """Return the text with another current context."""
    wanted = {**_document(text), CURRENT: name}
    lines = _lines(text)
    line = f"{CURRENT} = {_quoted(name)}\n"
    at = next((i for i, each in enumerate(lines) if _CURRENT_LINE.match(each)), None)
    if at is None:
        return _checked(f"{line}\n{text}" if text else line, wanted)
    return _checked("".join([*lines[:at], line, *lines[at + 1 :]]), wanted)


def write(path: Path, text: str) -> None:
    """Replace the file; a link to it stays. Raises ``OSError``."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def _document(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandFailed(f"the file of contexts is no TOML: {error}") from None


def _checked(text: str, wanted: Mapping[str, Any]) -> str:
    try:
        if tomllib.loads(text) == wanted:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise CommandFailed(
        "the file of contexts has a form that this command cannot change: edit it, with one"
        f" table [{CONTEXTS}.name] for each context"
    )


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _quoted(value: str) -> str:
    # JSON's escapes are TOML's, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
