"""The line protocol between a test and a client driver, which is a process of its own.

A message is one tab-separated line: partition (-1: the client chooses), timestamp in
milliseconds (-1: now), key, value, headers. Bytes are base64, ``~`` stands for null,
headers are ``name=bytes`` joined by ``;``.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One record as a client sends or receives it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    timestamp_ms: int = -1


def to_line(message: Message) -> str:
    """Return the message's line, without its end."""
    headers = ";".join(f"{name}={_encode(value)}" for name, value in message.headers)
    fields = (
        str(message.partition),
        str(message.timestamp_ms),
        _encode(message.key),
        _encode(message.value),
        headers,
    )
    return "\t".join(fields)


def from_line(line: str) -> Message:
    """Return the message that ``to_line`` wrote."""
    partition, timestamp, key, value, headers = line.rstrip("\n").split("\t")
    pairs = (pair.split("=", 1) for pair in headers.split(";") if pair)
    return Message(
        value=_decode(value),
        key=_decode(key),
        headers=tuple((name, _decode(data)) for name, data in pairs),
        partition=int(partition),
        timestamp_ms=int(timestamp),
    )


def _encode(data: bytes | None) -> str:
    return "~" if data is None else base64.b64encode(data).decode()


def _decode(text: str) -> bytes | None:
    return None if text == "~" else base64.b64decode(text)
