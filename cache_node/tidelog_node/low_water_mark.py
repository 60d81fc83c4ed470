"""Sets when a socket is readable while a large message is unfinished.

A fast node would wake for every piece in which a message comes: clients encrypt and send a request
record by record, 16 KiB each, and a leader sends a follower's answer in the system's pieces. So the
socket is readable only once ``LOW_WATER_BYTES_MAX`` of the message have come, or its end. That is
less than any sender's buffer has room for: it never waits for the receiver to take something. More
is for senders whose buffers grow.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Protocol

LOW_WATER_BYTES_MAX = 131_072


class ReceivingSocket(Protocol):
    """A socket, or asyncio's stand-in for it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option. Raises ``OSError``."""


class LowWaterMark:
    """The number of bytes from which on the socket is readable."""

    __slots__ = ("_bytes_max", "_bytes_min", "_held_bytes_max", "_size_bytes", "_socket")

    def __init__(
        self,
        sock: ReceivingSocket,
        *,
        held_bytes_max: int = 0,
        bytes_min: int = 1,
        bytes_max: int = LOW_WATER_BYTES_MAX,
    ) -> None:
        """So many bytes of a message may be held elsewhere: they do not come any more.

        A mark below ``bytes_min`` is not worth a system call. No mark is above ``bytes_max``.
        """
        self._socket = sock
        self._held_bytes_max = held_bytes_max
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._size_bytes = 1

    def expect(self, size_bytes: int) -> None:
        """Set the mark for so many bytes that are to come; 0: any byte counts."""
        coming_bytes = size_bytes - self._held_bytes_max
        mark_bytes = 1
        if coming_bytes >= self._bytes_min:
            mark_bytes = min(coming_bytes, self._bytes_max)
        if mark_bytes != self._size_bytes:
            self._size_bytes = mark_bytes
            with suppress(OSError):  # The socket is closed, or the system has no such mark.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
