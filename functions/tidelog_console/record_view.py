"""A record as a browser shows it: text where it is text, else bytes in hex. Pure."""

from __future__ import annotations

import codecs
from typing import Any

from tidelog.consuming.records import ConsumerRecord

VALUE_BYTES_MAX = 2_048
KEY_BYTES_MAX = 256
HEADERS_MAX = 16
HEADER_BYTES_MAX = 128
HEX_BYTES_MAX = 256
_BREAKS = "\n\t"
_CONTROLS = frozenset(chr(code) for code in range(0x20)) - set("\n\r\t") | {"\x7f"}


def record_view(record: ConsumerRecord) -> dict[str, Any]:
    """Return the record for JSON; parts that are too long are cut."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": bytes_view(record.key, KEY_BYTES_MAX),
        "value": bytes_view(record.value, VALUE_BYTES_MAX),
        "headers": [
            {
                "name": text_view(name, HEADER_BYTES_MAX),
                "value": bytes_view(value, HEADER_BYTES_MAX),
            }
            for name, value in record.headers[:HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(record.headers) - HEADERS_MAX),
    }


def bytes_view(data: bytes | None, size_bytes_max: int) -> dict[str, Any]:
    """Return ``kind`` (null, text or hex), ``text``, ``size_bytes``, and whether it ``is_cut``."""
    if data is None:
        return {"kind": "null", "text": "", "size_bytes": 0, "is_cut": False}
    text = _decoded(data[:size_bytes_max])
    if text is not None:
        is_cut = len(data) > size_bytes_max
        return {"kind": "text", "text": _visible(text), "size_bytes": len(data), "is_cut": is_cut}
    shown = data[: min(size_bytes_max, HEX_BYTES_MAX)]
    is_cut = len(shown) < len(data)
    return {"kind": "hex", "text": shown.hex(" "), "size_bytes": len(data), "is_cut": is_cut}


def text_view(text: str, length_max: int) -> str:
    """Return a text without characters that cannot be seen, cut."""
    return _visible(text[:length_max])


def _decoded(data: bytes) -> str | None:
    """Return the text; a character that was cut at the end is left out. None: it is no text."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(bytes(data), final=False)
    except UnicodeDecodeError:
        return None
    if (data and not text) or not _CONTROLS.isdisjoint(text):
        return None
    return text


def _visible(text: str) -> str:
    """Return the text with escapes for invisible characters and those that change the direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _BREAKS else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character == "\r":
        return "\\r"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
