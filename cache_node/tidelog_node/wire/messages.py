"""Control-plane messages: read and write any version through kio, handle only the newest.

A handler takes the newest request class of its route and returns the newest response
class: an older request is lifted by filling the fields it lacks with their defaults,
and an older response is written by that version's writer, which takes the fields it
knows. Where a newer version dropped or reshaped fields, the API has several routes.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, TypeVar

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.protocol import Entity

T = TypeVar("T")


def build(cls: type[T], /, **fields: object) -> T:
    """Return a kio entity from plain ints and strings; fields left out are zero or empty.

    kio's fields have phantom types (``i32`` and the like) that only exist for
    type checkers; at run time a plain ``int`` is one. Raises ``TypeError`` for a
    field that the class does not have.
    """
    defaults = _defaults(cls)
    return cls(**{**defaults, **fields})


def read_request(api_key: int, version: int, data: memoryview, position: int) -> Entity:
    """Return the request body that starts at ``position``, in its own version's class.

    Raises whatever kio raises on malformed bytes (``kio.serial.errors`` and
    ``ValueError`` among them); the caller closes the connection.
    """
    request, _ = entity_reader(load_request_schema(api_key, version))(data, position)
    return request


def write_response(api_key: int, version: int, response: object) -> bytes:
    """Return the encoded response body; ``response`` may be of a newer version's class."""
    buffer = io.BytesIO()
    schema: Any = load_response_schema(api_key, version)
    entity_writer(schema)(buffer, response)
    return buffer.getvalue()


def lift(entity: object, newest: type[T]) -> T:
    """Return ``entity`` as an instance of ``newest``, missing fields at their defaults."""
    if type(entity) is newest:
        return entity
    return typing.cast("T", _lifter(newest)(entity))


@cache
def _defaults(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: _default_of(f, hints[f.name]) for f in dataclasses.fields(cls)}


@cache
def _lifter(newest: type) -> Callable[[object], object]:
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
    (bool, False),
    (str, ""),
    (int, 0),
    (float, 0.0),
    (bytes, b""),
    (datetime.timedelta, datetime.timedelta()),
)


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return what lifts a value of the hinted type, or ``None`` where nothing needs lifting."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        inner = _converter(next(a for a in arguments if a is not type(None)))
        return None if inner is None else lambda value: None if value is None else inner(value)
    if origin is tuple:
        inner = _converter(arguments[0])
        return None if inner is None else lambda values: tuple(inner(value) for value in values)
    if dataclasses.is_dataclass(hint):
        return lambda value: lift(value, typing.cast("type", hint))
    return None


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
