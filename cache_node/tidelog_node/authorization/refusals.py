"""Answers for the elements of a request that the client may not use.

Kafka's messages name an element by the same fields in a request and in its response. So the
refused element is built from the response's class: those fields are copied, every error code is
set, and the partitions are refused one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from tidelog_core.errors import ErrorCode

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.wire.messages import build

_NAMES = frozenset(
    {
        *("name", "topic", "topic_name", "topic_id", "partition", "partition_index"),
        *("group_id", "transactional_id", "producer_id", "key", "user"),
        *("resource_type", "resource_name", "entity_type", "entity_name"),
    }
)
_INNER = ("partitions", "partition_indexes", "entity")  # the elements of a request's element
_PARTITION_NUMBERS = ("partition_index", "partition_id")
_ERROR_CODE = "error_code"
_ERROR_CODES = (_ERROR_CODE, "partition_error_code")
_ERROR_MESSAGE = "error_message"
REFUSED = "Authorization failed."
NOTHING: Mapping[str, object] = {}


async def refused(
    answer_class: Any,
    element: Any,
    code: ErrorCode,
    turn: RequestTurn,
    others: Mapping[str, object] = NOTHING,
) -> Any:
    """Return the response's element for a refused one of the request.

    ``element`` is a kio entity, or a partition's number. ``others`` are the values of fields that
    say nothing about it.
    """
    values: dict[str, object] = {}
    for name, inner in _fields(answer_class).items():
        if name in _ERROR_CODES:
            values[name] = code
        elif name == _ERROR_MESSAGE:
            values[name] = REFUSED
        elif name in others:
            values[name] = others[name]
        elif isinstance(element, int):
            if name in _PARTITION_NUMBERS:
                values[name] = element
        elif inner is not None:
            elements = turn.each(_inner_elements(element))
            values[name] = tuple(
                [await refused(inner, one, code, turn, others) async for one in elements]
            )
        elif name in _NAMES and hasattr(element, name):
            values[name] = getattr(element, name)
    return build(answer_class, **values)


def refusal(answer_class: Any, **values: object) -> Any:
    """Return an entity with these values, and with a message if it has an error.

    Values that it has no field for are left out: versions differ in their fields.
    """
    if values.get(_ERROR_CODE):
        values[_ERROR_MESSAGE] = REFUSED
    fields = _fields(answer_class)
    return build(answer_class, **{name: values[name] for name in values.keys() & fields.keys()})


def element_class(answer_class: Any, field: str) -> type[Any]:
    """Return the class of the elements of a response's array."""
    inner = _fields(answer_class)[field]
    assert inner is not None, f"{field} is an array of entities"
    return cast("type[Any]", inner)


def _inner_elements(element: Any) -> Iterable[Any]:
    for name in _INNER:
        elements = getattr(element, name, None)
        if elements is not None:
            return cast("Iterable[Any]", elements)
    return ()


@cache
def _fields(answer_class: Any) -> Mapping[str, Any]:
    """Return the fields, each with the class of its elements if it is an array of entities."""
    hints = get_type_hints(answer_class)
    return {
        field.name: next(filter(dataclasses.is_dataclass, _classes_in(hints[field.name])), None)
        for field in dataclasses.fields(answer_class)
        if field.name != "throttle_time"
    }


def _classes_in(hint: Any) -> Iterable[Any]:
    for part in get_args(hint):
        if isinstance(part, type) and get_origin(part) is None:
            yield part
        yield from _classes_in(part)
