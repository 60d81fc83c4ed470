"""Encodes messages between the node and its child processes, over standard streams.

Each message is a 32-bit big-endian length and that many bytes of a pickled object. Pickle is safe
here: both ends are of the same installation, and no other process writes into these pipes. A
message may announce raw bytes that follow it, so that large data is not copied into a pickle.
"""

from __future__ import annotations

import asyncio
import pickle
from struct import Struct
from typing import BinaryIO

PIECE_BYTES = 65_536  # the capacity of a pipe

_LENGTH = Struct(">I")


def encode_message(message: object) -> bytes:
    """Return the bytes of one message."""
    content = pickle.dumps(message)
    return _LENGTH.pack(len(content)) + content


async def send_bytes(output: asyncio.StreamWriter, data: memoryview) -> None:
    """Write raw bytes after the message that announces them, a piece at a time.

    So the writer never holds a copy of more than a piece. ``data`` must not change until the end.
    """
    for start in range(0, len(data), PIECE_BYTES):
        output.write(data[start : start + PIECE_BYTES])
        await output.drain()


def write_message(output: BinaryIO, message: object) -> None:
    """Write one message and flush."""
    output.write(encode_message(message))
    output.flush()


def read_message(source: BinaryIO) -> object:
    """Return the next message. Raises ``EOFError``."""
    prefix = source.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise EOFError("no message follows")
    return pickle.loads(source.read(_LENGTH.unpack(prefix)[0]))


def read_bytes(source: BinaryIO, size_bytes: int) -> bytearray:
    """Return the raw bytes that follow a message. Raises ``EOFError``."""
    data = source.read(size_bytes)
    if len(data) < size_bytes:
        raise EOFError("the bytes end early")
    return bytearray(data)


async def receive_message(source: asyncio.StreamReader) -> object:
    """Return the next message. Raises ``EOFError``."""
    (length,) = _LENGTH.unpack(await source.readexactly(_LENGTH.size))
    return pickle.loads(await source.readexactly(length))
