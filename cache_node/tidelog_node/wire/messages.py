"""Decodes and encodes control messages of any version as the newest version's classes.

A handler takes the newest request class of its route and returns the newest response
class. If a newer version dropped or reshaped fields, the API has several routes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tidelog_core import wire_messages
from tidelog_core.message_reader import ElementBudget, read_message
from tidelog_core.message_schemas import load_request_schema, load_response_schema
from tidelog_core.wire_messages import write_message

from tidelog_node.wire.primitives import cut_error_text

T = TypeVar("T")


def build(cls: type[T], /, **fields: Any) -> T:
    """Return a kio entity as core's ``build`` does; a long ``error_message`` is shortened."""
    text = fields.get("error_message")
    if text is not None:
        fields["error_message"] = cut_error_text(text)
    return wire_messages.build(cls, **fields)


def read_request(
    api_key: int,
    version: int,
    data: bytes | memoryview,
    *,
    newest: type[Any],
    budget: ElementBudget | None = None,
) -> Any:
    """Return the request body in ``data`` as the API's class ``newest``.

    Raises ``MalformedMessage``, and ``TooManyElements`` if it has more elements than ``budget``.
    """
    schema = load_request_schema(api_key, version)
    return read_message(schema, data, newest=newest, budget=budget)


def has_more_elements(message: Any, elements_max: int) -> bool:
    """Return whether a kio entity's arrays, nested ones included, exceed ``elements_max``."""
    left = elements_max
    unseen = [message]
    while unseen:
        entity = unseen.pop()
        for name in entity.__dataclass_fields__:
            value = getattr(entity, name)
            if type(value) is tuple:
                left -= len(value)
                if left < 0:
                    return True
                if value and hasattr(value[0], "__dataclass_fields__"):
                    unseen += value
            elif hasattr(value, "__dataclass_fields__"):
                unseen.append(value)
    return False


def find_error_codes(message: Any, *, elements_max: int) -> list[int]:
    """Return the error codes of a kio entity and its arrays, without those that say no error.

    Only the first ``elements_max`` elements are looked at.
    """
    codes: list[int] = []
    unseen = [message]
    while unseen:
        entity = unseen.pop()
        for name in entity.__dataclass_fields__:
            value = getattr(entity, name)
            if name == "error_code":
                if value:
                    codes.append(int(value))
            elif type(value) is tuple and value and hasattr(value[0], "__dataclass_fields__"):
                unseen += value[: max(elements_max, 0)]
                elements_max -= len(value)
    return codes


def write_response(api_key: int, version: int, response: object) -> bytes:
    """Return the encoded response body; ``response`` may be of a newer version's class."""
    return write_message(load_response_schema(api_key, version), response)
