"""The shell blocks of the pages, and why some of them are not run.

A block is a shell block if it is indented, or fenced without a language or as ``console`` or
``sh``. Other blocks name their language: ``text``, ``properties``, ``python``.

The tests run a shell block unless the line before it says why not, and where it is checked:

    <!-- not run: it needs an account of AWS; see tests/aws/test_template.py -->
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.places import ROOT

_SHELL_LANGUAGES = {"", "console", "sh"}
_FENCE = re.compile(r"^( *)```(\w*)$")
_MARK = re.compile(r"^ *<!-- not run: (.+) -->$")
_LIST_ITEM = re.compile(r"^(\d+\.|-) ")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


class Block(NamedTuple):
    """A shell block."""

    page: Path
    line: int  # of its first line, from 1
    text: str
    reason: str  # why it is not run; "" if it is

    @property
    def where(self) -> str:
        """The page and the line, for messages."""
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[tuple[str, str | None]]:
        """Its commands, each with the output that the page shows; ``None``: it shows none."""
        if re.match(r"\$ ", self.text):
            parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
            split = [part.partition("\n") for part in parts]
            return [(command, output.strip()) for command, _, output in split]
        commands: list[tuple[str, str | None]] = []
        begun = ""
        for line in self.text.splitlines():
            if not begun and (not line.strip() or line.startswith("#")):
                continue
            begun += line
            if line.endswith("\\") or not _is_closed(begun):
                begun += "\n"
            else:
                commands.append((begun, None))
                begun = ""
        return commands


def _is_closed(command: str) -> bool:
    """Return whether all quotation marks of a command have their second one."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def blocks_of(page: Path) -> list[Block]:
    """Return the shell blocks of a page, in order."""
    lines = page.read_text().splitlines()
    return list(_blocks(page, lines))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    place, reason, indent = 0, "", " " * 4
    while place < len(lines):
        line, begin = lines[place], place
        if line.strip() and not line.startswith(" "):
            indent = " " * (8 if _LIST_ITEM.match(line) else 4)
        place += 1
        if mark := _MARK.match(line):
            reason = mark[1]
        elif fence := _FENCE.match(line):
            while lines[place].strip() != "```":
                place += 1
            if fence[2] in _SHELL_LANGUAGES:
                yield _block(page, lines, begin + 1, place, reason)
            place, reason = place + 1, ""
        elif line.startswith(indent) and line.strip() and not lines[begin - 1].strip():
            while place < len(lines) and (lines[place].startswith(indent) or not lines[place]):
                place += 1
            yield _block(page, lines, begin, place, reason)
            reason = ""
        elif line.strip():
            reason = ""


def _block(page: Path, lines: list[str], begin: int, end: int, reason: str) -> Block:
    text = textwrap.dedent("\n".join(lines[begin:end])).strip()
    return Block(page, begin + 1, text, reason)
