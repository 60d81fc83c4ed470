"""Writes ``docs/errors.md`` from the tree of errors: ``python -m tools.error_reference``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import tidelog.errors
import tidelog_core.errors
from tidelog_core.errors import TidelogError

from tools.places import ROOT

PAGE = ROOT / "docs" / "errors.md"
_BEGIN = """\
# Errors

The errors of the SDK, of commands and of nodes, with the code that goes over the wire: Kafka's
clients show the code. Clients retry an error that may pass; the others come back until something is
changed. `make docs` generates this page from the tree of errors.

| error | code | may pass | meaning | what to do |
|---|---|---|---|---|
"""


def error_page() -> str:
    """Return the page."""
    return "".join([_BEGIN, *map(_row, _errors())])


def _errors() -> Iterator[type[TidelogError]]:
    """Yield every error of core and the SDK that has a meaning of its own, by name."""
    found = {
        one.__name__: one
        for module in (tidelog_core.errors, tidelog.errors)
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, TidelogError) and one is not TidelogError
    }
    for name in sorted(found):
        yield found[name]


def _row(error: type[TidelogError]) -> str:
    code = f"{error.code.name.upper()} ({error.code.value})"
    # Some errors differ from their code, so an instance is asked; its arguments do not matter.
    passes = "yes" if error.__new__(error).retriable else "no"
    meaning = " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split())
    cells = (f"`{error.__name__}`", code, passes, meaning.replace("``", "`"), error.hint)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(error_page())
