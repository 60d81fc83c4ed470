"""Reads frames of Kafka's protocol from a socket."""

from __future__ import annotations

import socket
import struct

_RECEIVE_BYTES_MAX = 1 << 20


class Frames:
    """Divides the bytes received by a socket into frames."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._data = bytearray()

    def receive(self) -> list[bytes]:
        """Receive once and return the frames that are whole, without their sizes.

        Raises ``EOFError`` if the other side has closed the connection.
        """
        received = self._source.recv(_RECEIVE_BYTES_MAX)
        if not received:
            raise EOFError("the connection was closed")
        self._data += received
        frames = []
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                break
            frames.append(bytes(self._data[4 : 4 + size]))
            del self._data[: 4 + size]
        return frames
