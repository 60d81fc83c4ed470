"""Decodes messages of the Kafka protocol from untrusted bytes.

kio's own reader is not safe for that: it reserves memory for as many elements as an array
claims, which can end the process, and it refuses tagged fields that are newer than its schemas.
Here a length is checked against the remaining bytes, unknown tagged fields are skipped
(KIP-482), null is refused unless the schema allows it, and every fault of a message raises one
error. A message takes less than fifty times its size in memory.

As in Kafka, bytes behind a message are ignored, and an unknown error code becomes
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.protocol import Entity

from tidelog_core.errors import MalformedMessage, TooManyElements
from tidelog_core.message_reader_source import source_of

E = TypeVar("E", bound=Entity)

VARINT_SIZE_BYTES_MAX = 5
_NUMBERS_AT_ONCE = 8192  # then other threads may run
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNBOUNDED = 1 << 62  # a frame has fewer bytes than that


class ElementBudget:
    """The limits of array elements and tagged fields of messages, with nested ones."""

    __slots__ = ("left",)

    def __init__(self, elements_max: int) -> None:
        self.left = elements_max


def read_message(
    schema: type[E],
    data: bytes | bytearray | memoryview,
    position: int = 0,
    *,
    newest: type[E] | None = None,
    budget: ElementBudget | None = None,
    has_views: bool = False,
) -> E:
    """Return the message that starts at ``position``, in its own version's class or ``newest``.

    ``newest`` is the same message in another version: it gets the fields that both have, and
    defaults for the others. The message's elements are taken from ``budget``. With ``has_views``
    records are memoryviews of the data, which must not change while they are in use.
    Raises ``MalformedMessage``, and ``TooManyElements`` if the budget has too few left.
    """
    found, _ = read_from(schema, data, position, newest=newest, budget=budget, has_views=has_views)
    return found


def read_from(
    schema: type[E],
    data: bytes | bytearray | memoryview,
    position: int,
    *,
    newest: type[E] | None = None,
    budget: ElementBudget | None = None,
    has_views: bool = False,
) -> tuple[E, int]:
    """Return the result of ``read_message``, and the position behind the message."""
    reader = _reader(schema, newest or schema, has_views)
    try:
        message, end, left = reader.read(
            memoryview(data) if has_views else bytes(data),
            position,
            _UNBOUNDED if budget is None else budget.left,
        )
    except _OutOfBudget as error:
        elements_max = 0 if budget is None else budget.left
        raise TooManyElements(reader.field_of(error), elements_max) from None
    except _PROBLEMS as error:
        raise MalformedMessage(reader.field_of(error), _describe(error)) from None
    if budget is not None:
        budget.left = left
    return message, end


class _Fault(Exception):
    """The bytes do not match the schema."""


class _OutOfBudget(Exception):
    """The message has more elements than are allowed."""


_PROBLEMS = (_Fault, struct.error, IndexError, UnicodeDecodeError, OverflowError)


class _Reader(NamedTuple):
    read: Callable[[bytes | memoryview, int, int], Any]
    fields: tuple[str, ...]  # of each line

    def field_of(self, error: BaseException) -> str:
        """Return the field whose line raised the error."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self.read.__code__:
                return self.fields[trace.tb_lineno - 1]
            trace = trace.tb_next
        raise AssertionError("the error is not of this reader") from error


@cache
def _reader(schema: type[Any], target: type[Any], has_views: bool) -> _Reader:
    source = source_of(schema, target, has_views=has_views)
    names = {**_NAMES, **source.names}
    file = f"<reader of {schema.__module__}.{schema.__qualname__}>"
    exec(compile(source.text, file, "exec"), names)  # of kio's classes, of no one's input
    read: Any = names["read"]
    return _Reader(read, source.fields)


def _describe(error: Exception) -> str:
    if isinstance(error, _Fault):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, OverflowError):
        return "is out of range for a timestamp"
    return "is cut off, or what follows it"


# -- what the readers' source uses --


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, position + VARINT_SIZE_BYTES_MAX):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise _Fault(f"has a varint of more than {VARINT_SIZE_BYTES_MAX} bytes")


def _numbers(data: bytes | memoryview, position: int, count: int, code: str) -> tuple[int, ...]:
    if count <= _NUMBERS_AT_ONCE:
        return struct.unpack_from(f">{count}{code}", data, position)
    numbers: list[int] = []
    size_bytes = struct.calcsize(">" + code)
    for start in range(0, count, _NUMBERS_AT_ONCE):
        some = min(_NUMBERS_AT_ONCE, count - start)
        numbers += struct.unpack_from(f">{some}{code}", data, position + start * size_bytes)
    return tuple(numbers)


def _time_of(time_ms: int) -> datetime.datetime:
    if time_ms < -1:  # -1 is for no time, also in fields that cannot be null
        raise _Fault("is before 1970")
    return _EPOCH + datetime.timedelta(milliseconds=time_ms)


def _too_long(size_bytes: int, size_bytes_max: int) -> _Fault:
    return _Fault(f"is said to take {size_bytes} bytes, of at most {size_bytes_max}")


def _too_many(count: int, left_bytes: int) -> _Fault:
    return _Fault(f"is said to have {count} elements, in {left_bytes} bytes")


_NAMES: dict[str, object] = {
    "Fault": _Fault,
    "OutOfBudget": _OutOfBudget,
    "error_codes": {int(code): code for code in ErrorCode},
    "UUID": UUID,
    "new": object.__new__,
    "no_uuid": bytes(16),
    "numbers": _numbers,
    "time_of": _time_of,
    "timedelta": datetime.timedelta,
    "too_long": _too_long,
    "too_many": _too_many,
    "unknown_server_error": ErrorCode.unknown_server_error,
    "varint": _varint,
}
