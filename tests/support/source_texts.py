"""The texts that the programs print or log, and the quotations of them in a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.places import ROOT

PACKAGES = ("core", "cache_node", "functions", "sdk", "spark")
START_LENGTH = 12
_QUOTED = re.compile(r"«([^»]+)»")


def quoted_in(page: str) -> Iterator[str]:
    """Yield the texts that the page has between « and »."""
    for found in _QUOTED.finditer(page):
        yield " ".join(found[1].split())


def is_in_source(text: str) -> bool:
    """Return whether a string of the programs has this text; … is a value that is filled in."""
    sources = _sources()
    if any(f'"{text}' in code for code in sources.values()):
        return True
    # It is in several literals, or has values. Parsing every file would take seconds.
    start = max(text.split("…"), key=len).strip()[:START_LENGTH]
    return any(text in _texts_of(path) for path, code in sources.items() if start in code)


@cache
def _sources() -> dict[Path, str]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path: path.read_text() for path in paths}


@cache
def _texts_of(path: Path) -> str:
    """Return the strings of a file, each on a line of its own."""
    texts = set[str]()
    for node in ast.walk(ast.parse(_sources()[path])):
        if isinstance(node, ast.JoinedStr):
            texts.add("".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return "\n".join(" ".join(text.split()) for text in texts)


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "…"
