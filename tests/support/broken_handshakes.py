"""Messages that look like the beginning of TLS."""

from __future__ import annotations

import random


def broken(hello: bytes, chance: random.Random) -> bytes:
    """Return a message that no node sends."""
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randint(1, 2_000))
        case 1:
            at = chance.randrange(len(hello))
            return hello[:at] + bytes([hello[at] ^ 1 << chance.randrange(8)]) + hello[at + 1 :]
        case 2:
            return hello[: chance.randrange(1, len(hello))]
        case 3:
            return hello + chance.randbytes(500)
        case _:
            return b"\x16\x03\x01\xff\xff" + chance.randbytes(3_000)
