"""The hash with which Kafka clients choose a key's partition.

Source: ``Utils.murmur2`` and the default partitioner of the Kafka clients.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash as a signed number, as Java does."""
    size = len(data)
    word_count = size >> 2
    state = _SEED ^ size
    for word in struct.unpack_from(f"<{word_count}I", data):
        mixed = word * _MULTIPLIER & _UINT32
        mixed = (mixed ^ mixed >> 24) * _MULTIPLIER & _UINT32
        state = state * _MULTIPLIER & _UINT32 ^ mixed
    if tail := data[word_count << 2 :]:
        state = (state ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _UINT32
    state = (state ^ state >> 13) * _MULTIPLIER & _UINT32
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state
