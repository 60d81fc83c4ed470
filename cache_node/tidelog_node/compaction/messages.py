"""What the node and a process that compacts say to each other, over its standard streams.

Each message is a pickled object behind its length in four bytes, big-endian: both ends are
of the same installation, and nobody else writes into these pipes.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from struct import Struct
from typing import BinaryIO

from tidelog_core.compaction.cleaner import CleaningTask
from tidelog_core.compaction.erasing import ErasingTask

LENGTH = Struct(">I")


@dataclass(frozen=True, slots=True)
class RewriterJob:
    """What one process is to do."""

    task: CleaningTask | ErasingTask
    bytes_per_second: int  # read and written together


@dataclass(frozen=True, slots=True)
class RewriteEnd:
    """All groups are through."""

    end_offset: int  # exclusive: where the compacted part, or the erasure, ends


def encode_message(message: object) -> bytes:
    """Return the bytes of one message."""
    content = pickle.dumps(message)
    return LENGTH.pack(len(content)) + content


def write_message(output: BinaryIO, message: object) -> None:
    """Write one message and flush."""
    output.write(encode_message(message))
    output.flush()


def read_message(source: BinaryIO) -> object:
    """Return the next message. Raises ``EOFError``."""
    prefix = source.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        raise EOFError("no message follows")
    return pickle.loads(source.read(LENGTH.unpack(prefix)[0]))
