"""One client that asks for too much: well-formed requests of megabytes, and frames that lie.

What is asked for is of no use to anybody. A node may answer, refuse or close the connection;
that it goes on serving everybody else is what the rest of a run looks at.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from tests.support import hostile_frames as frames
from tests.support.wire_client import frame, produce_body

COMPACTED = "compacted"  # a topic that takes batches to be decoded
ANSWER_SECONDS_MAX = 10.0
UNFINISHED_SIZE_BYTES = 50_000_000
UNFINISHED_CONNECTIONS = 20
SENT_SIZE_BYTES = 1 << 20  # of each unfinished frame


def _unfinished(_: float) -> bytes:
    return UNFINISHED_SIZE_BYTES.to_bytes(4, "big") + bytes(SENT_SIZE_BYTES)


# By name: the request, the larger the more of it is asked for, from 0 to 1.
_REQUESTS: dict[str, Callable[[float], bytes]] = {
    "array of 2^32": lambda _: frames.HUGE_ARRAY,
    "unknown topics": lambda amount: frames.metadata_of_unknown_topics(_scaled(amount, 100_000)),
    "committed offsets": lambda amount: frames.offset_fetch_of_partitions(_scaled(amount, 500_000)),
    "unknown groups": lambda amount: frames.describe_groups(_scaled(amount, 100_000)),
    "empty partitions": lambda amount: frames.produce_of_empty_partitions(_scaled(amount, 200_000)),
    "small records": lambda amount: frame(
        0,
        8,
        1,
        produce_body(COMPACTED, frames.batch_of_small_records(_scaled(amount, 200_000))),
        tags=b"",
    ),
    "unfinished frames": _unfinished,
}
NAMES = tuple(_REQUESTS)


def _scaled(amount: float, most: int) -> int:
    return most // 10 + int(amount * (most - most // 10))


class BigRequest:
    """A request on its way, on connections that stay open until ``close``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sockets: list[socket.socket] = []

    def send(self, port: int, amount: float) -> None:
        """Send it to the node behind the port; wait for what comes back, if anything does."""
        data = _REQUESTS[self.name](amount)
        is_unfinished = self.name == "unfinished frames"
        for _ in range(UNFINISHED_CONNECTIONS if is_unfinished else 1):
            # Whatever becomes of the connection is the node's affair, or another fault's.
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
                self._sockets.append(connection)
                if is_unfinished:
                    connection.setblocking(False)  # It need not be taken.
                    connection.send(data)
                else:
                    connection.sendall(data)
                    connection.recv(1)

    def close(self) -> None:
        """Leave."""
        for connection in self._sockets:
            connection.close()
