"""Encodes messages between the node and its child processes, over standard streams.

Each message is a pickled object behind its length in four bytes, big-endian: both ends are
of the same installation, and nobody else writes into these pipes. Bytes may follow a message
that says how many, as they are: what is large is not copied into a pickle.
"""

from __future__ import annotations

import asyncio
import pickle
from struct import Struct
from typing import BinaryIO

PIECE_BYTES = 65_536  # as much as a pipe takes

_LENGTH = Struct(">I")


def encode_message(message: object) -> bytes:
    """Return the bytes of one message."""
    content = pickle.dumps(message)
    return _LENGTH.pack(len(content)) + content


async def send_bytes(output: asyncio.StreamWriter, data: memoryview) -> None:
    """Write bytes behind a message that says how many, a piece at a time.

    So the writer never holds a copy of more than a piece. ``data`` must stay as it is.
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
    """Return the bytes that follow a message. Raises ``EOFError``."""
    data = source.read(size_bytes)
    if len(data) < size_bytes:
        raise EOFError("the bytes end early")
    return bytearray(data)


async def receive_message(source: asyncio.StreamReader) -> object:
    """Return the next message. Raises ``EOFError``."""
    (length,) = _LENGTH.unpack(await source.readexactly(_LENGTH.size))
    return pickle.loads(await source.readexactly(length))
