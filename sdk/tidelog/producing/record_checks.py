"""Checks the parts of a record that a program sends, and tells its size."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from tidelog_core.records.batch import Headers, record_size_bytes_max

from tidelog.encodable import is_encodable
from tidelog.errors import InvalidRequest

RECORD_OVERHEAD_BYTES = record_size_bytes_max(None, None)

_BYTES = (bytes, type(None))
_TIMESTAMP_MS_MAX = 2**63 - 1


def checked_size_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the record's largest possible size.

    Raises ``InvalidRequest`` if key or value are not bytes. The headers have been checked.
    """
    if type(key) not in _BYTES or type(value) not in _BYTES:
        raise _not_bytes(key, value)
    if headers:
        return record_size_bytes_max(key, value, headers)
    size_bytes = RECORD_OVERHEAD_BYTES
    if key is not None:
        size_bytes += len(key)
    if value is not None:
        size_bytes += len(value)
    return size_bytes


def checked_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the headers as tuples. Raises ``InvalidRequest`` if they cannot be sent.

    Names as consumers return them can be: bytes that are no UTF-8 are surrogate escapes there.
    """
    try:
        checked = tuple((name, content) for name, content in headers)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"headers must be pairs of str and bytes or None: {error}") from None
    for name, content in checked:
        if type(name) is not str or type(content) not in _BYTES:
            raise InvalidRequest(
                "headers must be pairs of str and bytes or None; "
                f"got {type(name).__name__} and {type(content).__name__}"
            )
        if not is_encodable(name, "surrogateescape"):
            raise InvalidRequest(f"header name {name!r} cannot be encoded as UTF-8")
    return checked


def checked_timestamp_ms(timestamp_ms: int) -> int:
    """Return the timestamp. Raises ``InvalidRequest`` if no record can have it."""
    try:
        checked = index(timestamp_ms)  # A float would fail once the batch is encoded.
    except TypeError:
        raise InvalidRequest(
            f"timestamp_ms must be an int, is {type(timestamp_ms).__name__}"
        ) from None
    if not 0 <= checked <= _TIMESTAMP_MS_MAX:
        raise InvalidRequest(f"timestamp_ms must be from 0 to 2**63 - 1, is {checked}")
    return checked


def _not_bytes(key: object, value: object) -> InvalidRequest:
    wrong = [
        f"{name} is {type(given).__name__}"
        for name, given in (("key", key), ("value", value))
        if type(given) not in _BYTES
    ]
    return InvalidRequest(f"key and value must be bytes or None; {', '.join(wrong)}")
