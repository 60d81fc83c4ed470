"""The unhandled bytes of a connection's frames, and the memory that is claimed for them.

Only the unhandled end of a receive is kept. The rest of an unfinished frame is received straight
into place, once memory for the whole frame is granted (``request_memory``).
"""

from __future__ import annotations

import mmap
import struct

from tidelog_node.answers import CloseConnection
from tidelog_node.connections.loop_buffers import SCRATCH_BYTES
from tidelog_node.fairness.request_memory import RECORDS_API_KEY, Claimant, RequestMemory

KEPT_BYTES_MAX = 4_194_304  # a larger buffer is released once its frame is handled
KEPT_BYTES_MIN = 4_096
# A request that carries no records is read into objects, which take much more than its bytes.
CONTROL_REQUEST_BYTES_MAX = 8_388_608
REQUEST_BYTES_MIN = 8  # api key, version, correlation id
HEAD_BYTES = 4 + REQUEST_BYTES_MIN

_SIZE_API_KEY = struct.Struct(">ih")


class KeptFrames:
    """The kept buffer of one connection, if it has one: unhandled bytes are ``[start, end)``."""

    __slots__ = ("_memory", "buffer", "end", "needed_bytes", "start")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.buffer: memoryview | None = None
        self.start = 0
        self.end = 0
        self.needed_bytes = 0  # of the unfinished frame, with its size field

    def claim(self, rest: memoryview, claimant: Claimant) -> bool:
        """Keep the unhandled bytes; return whether the rest of their frame may be received.

        Otherwise ``claimant.on_memory`` will be called. Raises ``CloseConnection``.
        """
        arrived_bytes = len(rest)
        size_bytes = max(self.needed_bytes, KEPT_BYTES_MIN)
        api_key = RECORDS_API_KEY  # unknown yet, and irrelevant for so few bytes
        if arrived_bytes >= HEAD_BYTES:
            size, api_key = _SIZE_API_KEY.unpack_from(rest)
            if size > CONTROL_REQUEST_BYTES_MAX and api_key != RECORDS_API_KEY:
                raise CloseConnection(
                    f"a request of API {api_key} of {size} bytes, "
                    f"allowed are {CONTROL_REQUEST_BYTES_MAX}"
                )
        kept = self.buffer
        if kept is not None and size_bytes <= len(kept) <= KEPT_BYTES_MAX:
            size_bytes = len(kept)
        is_granted = self._memory.claim(
            claimant, size_bytes, arrived_bytes=arrived_bytes, api_key=api_key
        )
        self._store(rest, size_bytes if is_granted else arrived_bytes)
        return is_granted

    def hold(self, rest: memoryview, claimant: Claimant) -> None:
        """Keep the unhandled bytes while nothing more is received."""
        self._store(rest, len(rest))
        self._memory.hold(claimant, len(rest))

    def empty(self, claimant: Claimant) -> None:
        """Note that all is handled; keep the buffer if its size and the memory allow."""
        self.start = self.end = 0
        assert self.buffer is not None
        size_bytes = len(self.buffer)
        is_worth_keeping = SCRATCH_BYTES <= size_bytes <= KEPT_BYTES_MAX
        if not is_worth_keeping or not self._memory.keep_idle(claimant, size_bytes):
            self.let_go(claimant)

    def let_go(self, claimant: Claimant) -> None:
        """Release the buffer and all claimed memory."""
        self.buffer = None
        self._memory.release(claimant)

    def _store(self, rest: memoryview, size_bytes: int) -> None:
        """Put ``rest`` at the front of a buffer of this size."""
        kept = self.buffer
        if kept is None or len(kept) != size_bytes:
            kept = _new_buffer(size_bytes)
        kept[: len(rest)] = rest
        self.buffer = kept
        self.start, self.end = 0, len(rest)


def _new_buffer(size_bytes: int) -> memoryview:
    """Return a buffer to receive into. A large one takes memory only as it fills.

    Its memory returns to the system at once when it is released; an allocator would keep it.
    """
    if size_bytes <= SCRATCH_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
