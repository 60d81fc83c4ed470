"""Lines of input for ``produce``: text with an optional key, or the JSON of ``consume``."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidelog_cli.failures import CommandFailed
from tidelog_cli.records.record_text import split_line

Headers = tuple[tuple[str, bytes | None], ...]
BASE64 = "_base64"
# What ``consume --json`` writes; the topic and the offset are not the new record's.
JSON_FIELDS = frozenset({"topic", "partition", "offset", "timestamp_ms", "headers"})
JSON_TEXTS = frozenset({"key", "value"})


class LineRecord(NamedTuple):
    """A record to write; None: the producer chooses the partition and the time."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class LineParser(Protocol):
    """Turns a line into a record."""

    def parse(self, line: bytes, number: int) -> LineRecord | None:
        """Return the record, None for none. Raises ``CommandFailed`` with the line's number."""


@dataclass(frozen=True, slots=True)
class TextLines:
    """Each line is a value, or a key and a value."""

    key_separator: bytes | None
    null_marker: bytes | None
    headers: Headers
    partition: int | None

    def parse(self, line: bytes, number: int) -> LineRecord:
        """Return the record. Raises ``CommandFailed`` with the line's number."""
        split = split_line(line, self.key_separator)
        if split is None:
            assert self.key_separator is not None
            separator = self.key_separator.decode()
            raise CommandFailed(f"line {number} has no {separator!r}; check --key-separator")
        key, value = split
        value_or_null = None if value == self.null_marker else value
        return LineRecord(key, value_or_null, self.headers, self.partition)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Each line is a JSON object as ``consume --json`` prints it; empty lines are skipped.

    The options' headers follow the record's, and their partition has precedence.
    """

    headers: Headers
    partition: int | None
    structured: frozenset[str] = frozenset()  # of key and value: those that are any JSON

    def parse(self, line: bytes, number: int) -> LineRecord | None:
        """Return the record. Raises ``CommandFailed`` with the line's number."""
        if not line.strip():
            return None
        try:
            return self._record(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise CommandFailed(f"line {number} is not a record in JSON: {error}") from None

    def _record(self, line: bytes) -> LineRecord:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
        known = JSON_FIELDS | JSON_TEXTS | {name + BASE64 for name in JSON_TEXTS}
        if unknown := sorted(document.keys() - known):
            raise ValueError(
                f"unknown field {unknown[0]!r}; allowed are {', '.join(sorted(known))}"
            )
        partition = self.partition
        if partition is None:
            partition = _number(document, "partition")
        return LineRecord(
            self._part(document, "key"),
            self._part(document, "value"),
            (*_headers(document), *self.headers),
            partition,
            _number(document, "timestamp_ms"),
        )

    def _part(self, document: dict[str, Any], name: str) -> bytes | None:
        if name not in self.structured or document.get(name) is None:
            return _bytes(document, name)
        return json.dumps(document[name]).encode()


def _number(document: dict[str, Any], name: str) -> int | None:
    number = document.get(name)
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError(f"{name!r} must be a number of 0 or more, is {number!r}")
    return number


def _bytes(document: dict[str, Any], name: str) -> bytes | None:
    text, encoded = document.get(name), document.get(name + BASE64)
    if encoded is None and (text is None or isinstance(text, str)):
        return None if text is None else text.encode()
    if text is not None:
        raise ValueError(f"{name!r} must be a string or null, and not beside '{name}{BASE64}'")
    if not isinstance(encoded, str):
        raise TypeError(f"'{name}{BASE64}' must be a string")
    try:
        return b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError(f"'{name}{BASE64}' is not valid base64") from None


def _headers(document: dict[str, Any]) -> Headers:
    listed = document.get("headers") or []
    if not isinstance(listed, list) or not all(
        isinstance(header, dict) and isinstance(header.get("name"), str) for header in listed
    ):
        raise ValueError("'headers' must be a list of objects with a 'name' and a 'value'")
    return tuple((header["name"], _bytes(header, "value")) for header in listed)
