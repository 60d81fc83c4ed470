"""The fields of the messages between a node and its processes, which have no version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints


def fields_of(kind: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and fields of the classes of which values of this type are made."""
    for argument in get_args(kind):
        yield from fields_of(argument)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        yield kind.__name__, list(hints)
        for hint in hints.values():
            yield from fields_of(hint)
