"""Sends answers: bytes are gathered into one send, file slices go through ``sendfile``."""

from __future__ import annotations

import errno
import logging
from collections import deque
from typing import NamedTuple

from tidelog_core.model import FileSlice, ReadableFile

from tidelog_node.answers import Segment
from tidelog_node.connections.transport import Buffer, Transport
from tidelog_node.counters import ListenerTraffic
from tidelog_node.disk import page_cache

logger = logging.getLogger(__name__)

GATHER_SEGMENTS_MAX = 64
SLICE_BYTES_PER_TURN = 1_048_576  # of a file, before other connections get a turn
SLICE_BYTES_READ_IN = 2_097_152  # per read of a file that is on the disk only
SLICE_BYTES_CHECKED_MIN = 131_072  # smaller slices are nearly always the last append


class ColdBytes(NamedTuple):
    """Bytes of a file that are on the disk only."""

    file: ReadableFile
    position: int
    size_bytes: int


class SegmentSender:
    """The unsent segments of one connection, and the position in the first."""

    __slots__ = ("_checked_of_slice", "_sent_of_slice", "_traffic", "_transport", "cold", "unsent")

    def __init__(self, transport: Transport, traffic: ListenerTraffic) -> None:
        """``traffic`` counts the bytes."""
        self._transport = transport
        self._traffic = traffic
        self.unsent: deque[Segment] = deque()
        self.cold: ColdBytes | None = None  # must be read by another thread before it goes on
        self._sent_of_slice = 0  # sent bytes of the first unsent slice
        self._checked_of_slice = 0  # bytes of it that are, or just were, in memory

    def send(self) -> bool:
        """Send until all is sent, the socket is full or other connections must get a turn.

        Returns whether all is sent. A client that takes bytes as fast as they are sent never
        fills its socket. Raises ``OSError`` if the connection or the file is broken.
        """
        unsent, transport = self.unsent, self._transport
        slice_bytes = 0
        try:
            while unsent:
                head = unsent[0]
                if type(head) is FileSlice:
                    if slice_bytes >= SLICE_BYTES_PER_TURN:
                        return False
                    ready_bytes = self._ready_bytes(head)
                    if not ready_bytes:
                        return False
                    sent = self._send_slice(head, ready_bytes)
                    if sent < ready_bytes:
                        return False
                    slice_bytes += sent
                elif len(unsent) == 1:
                    assert not isinstance(head, FileSlice)
                    sent = transport.send(head)
                    self._traffic.sent_bytes += sent
                    if sent == len(head):
                        unsent.clear()
                    else:
                        unsent[0] = memoryview(head)[sent:]
                else:
                    self._send_gathered()
            if transport.wants_write:
                transport.flush()
        except BlockingIOError:
            return False
        return not transport.wants_write

    def _ready_bytes(self, head: FileSlice) -> int:
        """Return the number of bytes of the current slice to send in this turn.

        0 if they are ``cold``.
        """
        done = self._sent_of_slice
        left_bytes = head.size_bytes - done
        if head.size_bytes < SLICE_BYTES_CHECKED_MIN:
            return left_bytes
        if done == self._checked_of_slice:
            size_bytes = min(left_bytes, SLICE_BYTES_READ_IN)
            self._checked_of_slice = done + size_bytes
            position = head.position + done
            if not page_cache.is_in_memory(head.file, position, size_bytes):
                self.cold = ColdBytes(head.file, position, size_bytes)
                return 0
        return min(self._checked_of_slice - done, SLICE_BYTES_PER_TURN)

    def _send_slice(self, head: FileSlice, size_bytes: int) -> int:
        done = self._sent_of_slice
        try:
            sent = self._transport.sendfile(head.file, head.position + done, size_bytes)
        except OSError as error:
            if error.errno == errno.EIO and type(error) is OSError:  # OpenSSL's have such numbers.
                _report_unreadable(head, done, str(error), logging.ERROR)
            raise
        self._traffic.sent_bytes += sent
        if sent == 0:
            # A replica that has just begun to follow may have truncated it.
            _report_unreadable(head, done, "the file ends there", logging.WARNING)
            raise OSError(f"{head.file.path} ends before byte {head.position + done}")
        if done + sent == head.size_bytes:
            self.unsent.popleft()
            self._sent_of_slice = self._checked_of_slice = 0
        else:
            self._sent_of_slice = done + sent
        return sent

    def _send_gathered(self) -> None:
        unsent = self.unsent
        gathered: list[Buffer] = []
        is_before_slice = False
        for segment in unsent:
            if isinstance(segment, FileSlice):
                is_before_slice = True
                break
            gathered.append(segment)
            if len(gathered) == GATHER_SEGMENTS_MAX:
                break
        sent = self._transport.sendmsg(gathered, has_more=is_before_slice)
        self._traffic.sent_bytes += sent
        for segment in gathered:
            size_bytes = len(segment)
            if sent < size_bytes:
                if sent:
                    unsent[0] = memoryview(segment)[sent:]
                break
            sent -= size_bytes
            unsent.popleft()


def _report_unreadable(head: FileSlice, done: int, reason: str, level: int) -> None:
    """Log a range that cannot be sent: the client only sees that its connection ends."""
    position = head.position + done
    extra = {"path": str(head.file.path), "position": position, "reason": reason}
    logger.log(level, "records cannot be sent", extra=extra)
