"""Protocol messages in any version, through kio, where the code knows only the newest.

A message that came in an older version is lifted: the fields it lacks get their
defaults. A message that goes out in an older version is written by that version's
writer, which takes the fields it knows from the newest class. This holds as long as
newer versions only add fields; where one drops or reshapes them, the caller keeps to
the versions of one shape.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from collections.abc import Callable, Hashable
from functools import cache
from types import UnionType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.protocol import Entity

T = TypeVar("T")
E = TypeVar("E", bound=Entity)


def build(cls: type[T], /, **fields: object) -> T:
    """Return a kio entity from plain ints and strings; fields left out are zero or empty.

    kio's fields have phantom types (``i32`` and the like) that only exist for
    type checkers; at run time a plain ``int`` is one. Raises ``TypeError`` for a
    field that the class does not have.
    """
    defaults = _defaults(typing.cast("Hashable", cls))
    return cls(**{**defaults, **fields})


def read_message(schema: type[E], data: bytes | bytearray | memoryview, position: int = 0) -> E:
    """Return the message that starts at ``position``, in its own version's class.

    Raises whatever kio raises on malformed bytes (``kio.serial.errors`` and
    ``ValueError`` among them); the caller closes the connection.
    """
    message, _ = entity_reader(schema)(data, position)
    return message


def write_message(schema: type[Entity], message: object) -> bytes:
    """Return ``message`` encoded as ``schema``, which may be an older version's class."""
    buffer = io.BytesIO()
    entity_writer(typing.cast("Any", schema))(buffer, message)
    return buffer.getvalue()


def lift(entity: object, newest: type[T]) -> T:
    """Return ``entity`` as an instance of ``newest``, missing fields at their defaults."""
    if type(entity) is newest:
        return entity
    return typing.cast("T", _lifter(typing.cast("Hashable", newest))(entity))


@cache
def _defaults(cls: Any) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: _default_of(f, hints[f.name]) for f in dataclasses.fields(cls)}


@cache
def _lifter(newest: Any) -> Callable[[object], object]:
    hints = typing.get_type_hints(newest)
    plan = [
        (field.name, _converter(hints[field.name]), _default_of(field, hints[field.name]))
        for field in dataclasses.fields(newest)
    ]

    def convert(entity: object) -> object:
        values = {}
        for name, converter, default in plan:
            value = getattr(entity, name, _MISSING)
            if value is _MISSING:
                values[name] = default
            else:
                values[name] = value if converter is None else converter(value)
        return newest(**values)

    return convert


_MISSING = object()
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


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return what lifts a value of the hinted type, or ``None`` where nothing needs lifting."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return _optional(_converter(next(a for a in arguments if a is not type(None))))
    if origin is tuple:
        return _each(_converter(arguments[0]))
    if dataclasses.is_dataclass(hint):
        return lambda value: lift(value, typing.cast("type", hint))
    return None


def _optional(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _each(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda values: tuple(map(convert, values))


def _default_of(field: dataclasses.Field[Any], hint: Any) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType) and type(None) in arguments:
        return None
    if origin is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return lift(object(), typing.cast("type", hint))
    for base, zero in _ZEROS:
        if isinstance(hint, type) and issubclass(hint, base):
            return zero
    raise TypeError(f"no default for {field.name} of type {hint}")
