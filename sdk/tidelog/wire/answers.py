"""Checks that an answer has the entries that its request asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tidelog.errors import MalformedResponse

T = TypeVar("T")


def first_entry(entries: Sequence[T], about: object) -> T:
    """Return the only entry of an answer. Raises ``MalformedResponse`` if there is none."""
    if not entries:
        raise MalformedResponse(f"{about}: the node's answer does not contain it")
    return entries[0]


def check_answered(asked: Iterable[object], answered: Iterable[object], *, about: str) -> None:
    """Raise ``MalformedResponse`` unless all that was asked is answered.

    An entry that is left out would look like one without an error.
    """
    error = incompleteness(asked, answered, about=about)
    if error is not None:
        raise error


def incompleteness(
    asked: Iterable[object], answered: Iterable[object], *, about: str
) -> MalformedResponse | None:
    """Return the error of an answer that lacks some of what was asked, ``None`` if it has all."""
    missing = set(asked).difference(answered)
    if not missing:
        return None
    return MalformedResponse(
        f"{about}: the node's answer lacks {len(missing)} entries, such as {min(map(str, missing))}"
    )
