"""Adds an error's hint to what Spark shows of it: the text of a traceback.

Commands print the hint beside the error. A query's user sees the traceback alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog_core.errors import TidelogError


@contextmanager
def with_hint() -> Iterator[None]:
    """Add the hint of an error that the block raises as a note."""
    try:
        yield
    except TidelogError as error:
        note = f"hint: {error.hint}"
        if error.hint and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
