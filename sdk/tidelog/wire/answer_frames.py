"""Cuts the answers out of what a node sends, without I/O.

A frame is an int32 size, and so many bytes, which begin with the request's correlation id. Small
ones are copied out of a scratch buffer; a large one gets its own, which the socket is read into.
Source: the Kafka protocol guide, protocol primitive types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from tidelog.errors import TLS, MalformedResponse, NotKafka, TidelogError
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.requests import Buffer

FETCH_SIZE_BYTES_MAX = 512 * 1024 * 1024  # An answer to Fetch, whose records are not decoded here.
# Any other answer: decoded it takes up to fifty times as much. A million partitions' metadata fit.
ANSWER_SIZE_BYTES_MAX = 64 * 1024 * 1024
VERSIONS_SIZE_BYTES_MAX = 1024 * 1024  # the first answer; a node's is below 2 KiB
# The first bytes with which servers of other protocols answer.
_OTHER_PROTOCOLS = {b"HTTP": "HTTP", b"\x15\x03": TLS, b"\x16\x03": TLS, b"SSH-": "SSH"}
_SCRATCH_SIZE_BYTES = 64 * 1024
_SIZE = struct.Struct(">i")


def protocol_of(first: bytes) -> str | None:
    """Return the protocol, other than Kafka's, of a server that answers with these bytes."""
    found = (name for start, name in _OTHER_PROTOCOLS.items() if first.startswith(start))
    return next(found, None)


class AnswerFrames:
    """The frames of one connection."""

    def __init__(
        self, address: object, buffers: FrameBuffers, is_fetch: Callable[[bytes], bool]
    ) -> None:
        """``is_fetch`` says whether a frame that begins with these 4 bytes answers a fetch."""
        self._address = address
        self._buffers = buffers
        self._is_fetch = is_fetch
        # Until the node has answered, it may be any server, and its first bytes are no size.
        self._size_max = VERSIONS_SIZE_BYTES_MAX
        self._scratch = bytearray(_SCRATCH_SIZE_BYTES)
        self._scratch_filled = 0
        self._frame: memoryview | None = None  # the large one that is being received
        self._frame_filled = 0
        self.missing_bytes = 0  # of that frame

    def allow_large(self) -> None:
        """Take answers of every size from here on: a node has answered."""
        self._size_max = FETCH_SIZE_BYTES_MAX

    def forget(self) -> None:
        """Let go of a frame that is not complete."""
        self._frame = None

    def room(self) -> memoryview:
        """Return the memory for the next bytes."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return memoryview(self._scratch)[self._scratch_filled :]

    def received(self, count: int) -> Iterator[Buffer]:
        """Yield the frames that so many more bytes complete, without their sizes.

        Raises ``NotKafka`` and ``MalformedResponse``.
        """
        if self._frame is not None:
            self._frame_filled += count
            self.missing_bytes -= count
            if not self.missing_bytes:
                frame, self._frame = self._frame, None
                yield frame
            return
        self._scratch_filled += count
        scratch, filled, position = self._scratch, self._scratch_filled, 0
        while filled - position >= _SIZE.size:
            start = position + _SIZE.size
            (size,) = _SIZE.unpack_from(scratch, position)
            if not _SIZE.size <= size <= self._size_max:
                raise self._not_an_answer(bytes(scratch[position:start]), size)
            if size > ANSWER_SIZE_BYTES_MAX:
                if filled - start < _SIZE.size:
                    break  # The correlation id says which request this answers.
                if not self._is_fetch(bytes(scratch[start : start + _SIZE.size])):
                    raise self._announced(size)
            if filled - start >= size:
                yield bytes(memoryview(scratch)[start : start + size])
                position = start + size
                continue
            if size + _SIZE.size > len(scratch):
                self._frame = self._buffers.take(size)
                self._frame_filled = filled - start
                self.missing_bytes = size - self._frame_filled
                self._frame[: self._frame_filled] = memoryview(scratch)[start:filled]
                position = filled
            break
        scratch[: filled - position] = scratch[position:filled]
        self._scratch_filled = filled - position

    def _not_an_answer(self, first: bytes, size: int) -> TidelogError:
        is_first = self._size_max == VERSIONS_SIZE_BYTES_MAX
        protocol = protocol_of(first) if is_first else None
        return self._announced(size) if protocol is None else NotKafka(self._address, protocol)

    def _announced(self, size: int) -> TidelogError:
        return MalformedResponse(f"{self._address} announced an answer of {size} bytes")
