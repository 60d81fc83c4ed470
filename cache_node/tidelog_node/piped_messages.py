"""What the node and a process that it has started say to each other, over standard streams.

Each message is a pickled object behind its length in four bytes, big-endian: both ends are
of the same installation, and nobody else writes into these pipes.
"""

from __future__ import annotations

import asyncio
import pickle
from struct import Struct
from typing import BinaryIO

_LENGTH = Struct(">I")


def encode_message(message: object) -> bytes:
    """Return the bytes of one message."""
    content = pickle.dumps(message)
    return _LENGTH.pack(len(content)) + content


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


async def receive_message(source: asyncio.StreamReader) -> object:
    """Return the next message. Raises ``EOFError``."""
    (length,) = _LENGTH.unpack(await source.readexactly(_LENGTH.size))
    return pickle.loads(await source.readexactly(length))
