"""The sends of a connection whose bytes OpenSSL encrypts, a chunk at a time."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence

from tidelog_core.model import ReadableFile

from tidelog_node.connections.transport import Buffer


class ChunkSender:
    """Sends chunk by chunk, until a chunk is held back because the socket is full.

    A subclass encrypts chunks, and holds back what the socket does not accept.
    """

    __slots__ = ("_chunk", "_held")

    def __init__(self, chunk: memoryview) -> None:
        """``chunk`` has room for one chunk of a file. It is shared, and empty between calls."""
        self._chunk = chunk
        self._held: Buffer = b""  # while it has bytes, no chunk is sent

    def send(self, data: Buffer) -> int:
        """Encrypt and send; return how many of the bytes are sent or held back."""
        self._send_held()
        view = memoryview(data)
        sent, chunk_bytes = 0, len(self._chunk)
        while sent < len(view) and not self._held:
            sent += self._send_chunk(view[sent : sent + chunk_bytes])
        return sent

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:  # noqa: ARG002
        """Send the segments together: separately each would be a record or more."""
        return self.send(b"".join(segments))

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Read, encrypt and send. Returns 0 if the file ends before the bytes."""
        self._send_held()
        sent = 0
        while sent < size_bytes and not self._held:
            chunk = self._chunk[: size_bytes - sent]
            count = os.preadv(file.fileno(), [chunk], position + sent)
            if count == 0:
                break
            sent += self._send_chunk(chunk[:count])
        return sent

    @abstractmethod
    def _send_held(self) -> None:
        """Send the bytes held back. Raises ``BlockingIOError`` if some are left."""

    @abstractmethod
    def _send_chunk(self, chunk: memoryview) -> int:
        """Send the chunk or hold it back; return its size."""
