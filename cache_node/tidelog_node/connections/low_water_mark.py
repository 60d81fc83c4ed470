"""When the socket of a TLS connection is readable while a large request is unfinished.

Clients encrypt and send a large request record by record, 16 KiB each, and a fast node would wake
for every one. So the socket is readable only once ``LOW_WATER_BYTES_MAX`` of it have come, or its
end.
"""

from __future__ import annotations

import socket
from contextlib import suppress

RECORD_BYTES_MAX = 5 + 16_384 + 256  # with its head and padding. Source: RFC 8446, section 5.2.
LOW_WATER_BYTES_MIN, LOW_WATER_BYTES_MAX = 32_768, 131_072


class LowWaterMark:
    """The number of bytes from which on the socket is readable."""

    __slots__ = ("_size_bytes", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._size_bytes = 1

    def expect(self, size_bytes: int) -> None:
        """Set the mark for so many bytes that are to come; 0: any byte counts.

        Encrypted, the bytes are more, so a mark below them is always reached. But OpenSSL keeps
        what has come of an unfinished record to itself: that much less is to come.
        """
        coming_bytes = size_bytes - RECORD_BYTES_MAX
        mark_bytes = 1
        if coming_bytes >= LOW_WATER_BYTES_MIN:
            mark_bytes = min(coming_bytes, LOW_WATER_BYTES_MAX)
        if mark_bytes != self._size_bytes:
            self._size_bytes = mark_bytes
            with suppress(OSError):  # The socket is closed, or the system has no such mark.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
