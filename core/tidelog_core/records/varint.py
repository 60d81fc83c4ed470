"""Variable-length integers of the record format: zigzag, then seven bits a byte, low bits first.

The last byte of a number has its high bit clear. Zigzag maps 0, -1, 1, -2, ... to
0, 1, 2, 3, ... so that small numbers of either sign stay short: -1, which stands
for null, is the single byte 1.
Source: the message format page of the Kafka documentation; Protocol Buffers encoding.
"""

from __future__ import annotations

VARINT_SIZE_BYTES_MAX = 5  # 32 bits
VARLONG_SIZE_BYTES_MAX = 10  # 64 bits

_TABLE_SIZE = 4096  # covers nearly every length, offset delta and timestamp delta


def encode_varint(number: int) -> bytes:
    """Return the bytes of a signed number of at most 64 bits.

    Raises ``OverflowError`` for a larger one.
    """
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} does not fit into 64 bits")
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while rest > 127:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# ``ENCODED[n]`` is ``encode_varint(n)`` for every n from 0 up to its length.
ENCODED: tuple[bytes, ...] = tuple(encode_varint(number) for number in range(_TABLE_SIZE))


def read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at ``position``, still zigzagged, and the position behind it.

    An even result is twice the number; an odd one stands for a negative number.
    Raises ``ValueError`` for more than ten bytes, ``IndexError`` at the end of the data.
    """
    result = shift = 0
    for _ in range(VARLONG_SIZE_BYTES_MAX):
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7
    raise ValueError(f"a number takes more than {VARLONG_SIZE_BYTES_MAX} bytes")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the signed number at ``position`` and the position behind it.

    Raises as ``read_zigzag``.
    """
    zigzag, position = read_zigzag(data, position)
    return (zigzag >> 1) ^ -(zigzag & 1), position
