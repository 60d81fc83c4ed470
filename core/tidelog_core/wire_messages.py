"""Encodes and decodes protocol messages of any version as classes of the newest version.

An incoming message of an older version is decoded into the newest class (``message_reader``);
missing fields get their defaults. An outgoing message is encoded by the writer of its version,
which takes the fields it needs from the newest class. This works as long as newer versions only
add fields. If one removes or changes fields, the caller has to use versions of one shape.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from collections.abc import Hashable
from functools import cache
from types import UnionType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.protocol import Entity

T = TypeVar("T")


def build(cls: type[T], /, **fields: object) -> T:
    """Return a kio entity from plain ints and strings; fields left out are zero or empty.

    kio's fields have phantom types (``i32`` and the like) that only exist for
    type checkers; at run time a plain ``int`` is one. Raises ``TypeError`` for a
    field that the class does not have.
    """
    return cls(**{**defaults_of(cls), **fields})


def write_message(schema: type[Entity], message: object) -> bytes:
    """Return ``message`` encoded as ``schema``, which may be an older version's class."""
    buffer = io.BytesIO()
    entity_writer(typing.cast("Any", schema))(buffer, message)
    return buffer.getvalue()


def defaults_of(cls: type[Any]) -> dict[str, object]:
    """Return the values of a kio entity's fields that a message does not contain."""
    return _defaults(typing.cast("Hashable", cls))


@cache
def _defaults(cls: Any) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: _default_of(f, hints[f.name]) for f in dataclasses.fields(cls)}


_ZEROS: tuple[tuple[type, object], ...] = (
    (ErrorCode, ErrorCode.none),  # before int, which it is too, but kio writes its value
    (bool, False),
    (str, ""),
    (int, 0),
    (float, 0.0),
    (bytes, b""),
    (datetime.timedelta, datetime.timedelta()),
    (datetime.datetime, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
)


def _default_of(field: dataclasses.Field[Any], hint: Any) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType) and type(None) in arguments:
        return None
    if origin is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type", hint))
    for base, zero in _ZEROS:
        if isinstance(hint, type) and issubclass(hint, base):
            return zero
    raise TypeError(f"no default for {field.name} of type {hint}")
