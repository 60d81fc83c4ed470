"""Records as text: input lines for ``produce``, formats and JSON for ``consume``.

A format is text with these fields, as in kcat, and the usual escapes (``\\n \\t \\r \\0
\\\\ \\xNN``):

    %s value      %S its size in bytes, -1 for null      %t topic      %T timestamp, ms
    %k key        %K its size in bytes, -1 for null      %p partition  %h headers, n=v,…
    %o offset     %% a percent sign
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog_cli.failures import UsageError
from tidelog_cli.options import parse_pair

if TYPE_CHECKING:
    from tidelog.consuming.records import ConsumerRecord

RecordFormat = Callable[["ConsumerRecord"], bytes]
"""Returns the text to print for a record, including a newline if it has one."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ESCAPE = r"\\(x[0-9a-fA-F]{2}|.?)"
_TOKEN = re.compile(rf"%(.?)|{_ESCAPE}", re.DOTALL)
_FIELDS: dict[str, RecordFormat] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: _size(record.value),
    "k": lambda record: record.key or b"",
    "K": lambda record: _size(record.key),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: b",".join(
        name.encode(errors="surrogateescape") + b"=" + (value or b"")
        for name, value in record.headers
    ),
    "%": lambda _record: b"%",
}


def value_line(record: ConsumerRecord) -> bytes:
    """Return the value and a newline: the default format."""
    return (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """Return the record as one line of JSON.

    Bytes that are not UTF-8 are written in base64 as ``key_base64`` or ``value_base64``
    instead of ``key`` or ``value``.
    """
    document = json_fields(record)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"  # A header's name may be any bytes.


def json_fields(record: ConsumerRecord) -> dict[str, Any]:
    """Return what ``json_line`` writes."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_text_field("key", record.key),
        **_text_field("value", record.value),
        "headers": [{"name": name, **_text_field("value", v)} for name, v in record.headers],
    }


def parse_format(text: str) -> RecordFormat:
    """Return a function that formats records. Raises ``UsageError``."""
    parts: list[RecordFormat] = []
    at = 0
    for match in _TOKEN.finditer(text):
        if match.start() > at:
            parts.append(_constant(text[at : match.start()].encode()))
        at = match.end()
        parts.append(_parse_token(match))
    if at < len(text):
        parts.append(_constant(text[at:].encode()))
    return lambda record: b"".join([part(record) for part in parts])


def parse_header(text: str) -> tuple[str, bytes]:
    """Parse a header ``NAME=VALUE``. Raises ``UsageError``."""
    name, value = parse_pair("--header", text)
    return name, value.encode()


def split_line(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes] | None:
    """Return key and value of a line, or None if the separator is missing."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else None


def unescape(text: str) -> str:
    """Return the text with escapes such as ``\\t`` replaced by their characters."""
    return re.sub(_ESCAPE, lambda match: _unescape(match[1]).decode("latin-1"), text)


def _parse_token(match: re.Match[str]) -> RecordFormat:
    if match[2] is not None:
        return _constant(_unescape(match[2]))
    field = _FIELDS.get(match[1])
    if field is None:
        allowed = ", ".join(f"%{name}" for name in _FIELDS)
        raise UsageError(f"'{match[0]}' in --format is unknown; allowed are {allowed}")
    return field


def _unescape(escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise UsageError(
            f"'\\{escape}' is not an escape; allowed are \\n, \\t, \\r, \\0, \\\\, \\xNN"
        )
    return _ESCAPES[escape]


def _constant(data: bytes) -> RecordFormat:
    return lambda _record: data


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(data).decode()}
