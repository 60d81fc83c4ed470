"""The file of the kernels' machine code.

    magic (8 bytes) | SHA-256 of the rest (32) | size of the list (4, little-endian)
    | list of the entries as JSON | their object code, one after the other

An object's code is what LLVM made for one entry: an ELF file on Linux.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = b"tidecode"
_DIGEST_SIZE = 32
_LIST_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Entry:
    """A function in machine code."""

    name: str
    symbol: str
    arguments: str  # a letter each: i for an int64, p for an address
    code: bytes


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Return the file's bytes."""
    listed = [(one.name, one.symbol, one.arguments, len(one.code)) for one in entries]
    head = json.dumps(listed).encode()
    content = _LIST_SIZE.pack(len(head)) + head + b"".join(one.code for one in entries)
    return _MAGIC + hashlib.sha256(content).digest() + content


def unpack_entries(data: bytes) -> tuple[Entry, ...]:
    """Return the entries. Raises ``ValueError`` if the bytes are not those that were packed."""
    start = len(_MAGIC) + _DIGEST_SIZE
    checksum, content = data[len(_MAGIC) : start], data[start:]
    if data[: len(_MAGIC)] != _MAGIC or checksum != hashlib.sha256(content).digest():
        raise ValueError("not a whole file of machine code")
    (size,) = _LIST_SIZE.unpack_from(content)
    at = _LIST_SIZE.size + size
    entries = []
    for name, symbol, arguments, code_size in json.loads(content[_LIST_SIZE.size : at]):
        entries.append(Entry(name, symbol, arguments, content[at : at + code_size]))
        at += code_size
    return tuple(entries)
