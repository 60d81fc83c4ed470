"""Who is at the other end of a connection, and what holds for all of its requests.

The server makes a session for each connection that it accepts, and every handler gets it. What
security and quotas find out about a client is kept here, so that a request need not ask again.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.model import ANONYMOUS, Principal

from tidelog_node.wire.primitives import request_header

NO_NODE = -1


class Session:
    """One client on one connection. For the node's event loop."""

    __slots__ = (
        "_on_close",
        "client_host",
        "client_id",
        "client_id_bytes",
        "client_id_length",
        "client_port",
        "header",
        "listener",
        "node_id",
        "principal",
        "software_name",
        "software_version",
        "throttle_ms",
    )

    def __init__(self, client_host: str, client_port: int, listener: str) -> None:
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener  # the name of the one that accepted the connection
        self.principal: Principal = ANONYMOUS
        self.node_id = NO_NODE  # the broker that the other end has proved to be
        self.client_id: str | None = None  # of the newest request
        self.client_id_bytes = b""  # as it came
        self.client_id_length = -1  # -1: there is none
        self.header = request_header(0)  # reads a header whose client id is as long as the newest
        self.software_name = ""  # "" before ApiVersions of version 3
        self.software_version = ""
        self.throttle_ms = 0  # what answers tell the client to wait
        self._on_close: dict[Callable[[Session], None], None] = {}

    def note_client_id(self, client_id: bytes | None) -> None:
        """Note the client id of a request, where it is another than before."""
        self.client_id_bytes = client_id or b""
        self.client_id_length = -1 if client_id is None else len(client_id)
        self.header = request_header(len(self.client_id_bytes))
        # Only ever shown. A replacement would be longer than the byte, and the whole too long for
        # an answer.
        self.client_id = None if client_id is None else client_id.decode("utf-8", "ignore")

    def on_close(self, callback: Callable[[Session], None]) -> None:
        """Have it called, once, when the connection is closed. It must not raise."""
        self._on_close[callback] = None

    def closed(self) -> None:
        """Call those who want to know that the connection is closed."""
        callbacks = tuple(self._on_close)
        self._on_close.clear()
        for callback in callbacks:
            callback(self)
