"""Requests of every API with very many elements in one of their lists."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

from tidelog_core.message_schemas import load_request_schema
from tidelog_core.wire_messages import build, write_message

from tests.support.wire_client import frame

_INDEX_FIELDS = frozenset({"partition", "partition_id", "partition_index"})
_TOPIC_FIELDS = ("name", "topic", "topic_name")
TOPIC = "t"


def requests_with(count: int, api_key: int, version: int) -> Iterator[tuple[str, bytes]]:
    """Yield the frames of ``messages_with``."""
    for name, message in messages_with(count, api_key, version):
        yield name, _framed(message, api_key)


def messages_with(count: int, api_key: int, version: int) -> Iterator[tuple[str, Any]]:
    """Yield requests with so many elements in a list, or in a list of one element of it.

    With each comes the list's name. The elements differ by names and numbers, else they are
    what is empty.
    """
    schema: Any = load_request_schema(api_key, version)
    for name, kind in _lists_of(schema):
        yield name, build(schema, **{name: _elements(kind, count)})
        if dataclasses.is_dataclass(kind):
            for inner_name, inner_kind in _lists_of(kind):
                inner = {inner_name: _elements(inner_kind, count)}
                fields = {each.name for each in dataclasses.fields(kind)}
                inner |= {each: TOPIC for each in _TOPIC_FIELDS if each in fields}
                yield f"{name}.{inner_name}", build(schema, **{name: (build(kind, **inner),)})


def _framed(request: Any, api_key: int) -> bytes:
    schema = type(request)
    tags = b"\0" if schema.__flexible__ else b""
    return frame(api_key, schema.__version__, 1, write_message(schema, request), tags=tags)


def _lists_of(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each list, and of what it is."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        if typing.get_origin(hint) in (typing.Union, UnionType):
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        if typing.get_origin(hint) is tuple:
            kind = typing.get_args(hint)[0]
            if dataclasses.is_dataclass(kind) or issubclass(kind, str | int):
                yield field.name, kind


def _elements(kind: Any, count: int) -> tuple[Any, ...]:
    if not dataclasses.is_dataclass(kind):
        if issubclass(kind, str):
            return tuple(f"x{number}" for number in range(count))
        return tuple(number % 100 for number in range(count))  # of any width
    hints = typing.get_type_hints(kind)
    texts = [
        each for each, hint in hints.items() if isinstance(hint, type) and issubclass(hint, str)
    ]
    indexes = [each for each in hints if each in _INDEX_FIELDS]
    return tuple(
        build(
            typing.cast("Any", kind),
            **dict.fromkeys(texts, f"x{number}"),
            **dict.fromkeys(indexes, number),
        )
        for number in range(count)
    )
