"""The client of a connection, and the state that applies to all of its requests.

The server creates a session for each connection that it accepts, and every handler gets it. The
results of security and quota checks are kept here, so that requests do not repeat them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog_core.model import ANONYMOUS, Principal

from tidelog_node.counters import ListenerTraffic
from tidelog_node.wire.primitives import request_header

if TYPE_CHECKING:
    from tidelog_node.authentication.authentication import Authentication
    from tidelog_node.authorization.access import Decisions
    from tidelog_node.throttling.client_limits import ClientLimits

NO_NODE: Final = -1
Again = Callable[[], float]


class Session:
    """One client on one connection. For the node's event loop."""

    __slots__ = (
        "_is_closed",
        "_on_close",
        "authentication",
        "client_host",
        "client_id",
        "client_id_bytes",
        "client_id_length",
        "client_port",
        "decisions",
        "end_connection",
        "groups",
        "header",
        "is_by_token",
        "is_sharing",
        "limits",
        "listener",
        "mute_connection",
        "node_id",
        "principal",
        "received_at",
        "software_name",
        "software_version",
        "traffic",
    )

    def __init__(
        self,
        client_host: str,
        client_port: int,
        listener: str,
        traffic: ListenerTraffic | None = None,
    ) -> None:
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener  # the name of the listener that accepted the connection
        self.traffic = traffic or ListenerTraffic()  # of the listener
        self.received_at = 0.0  # the loop's time when bytes came last
        self.principal: Principal = ANONYMOUS
        self.groups: tuple[str, ...] = ()  # of the principal
        self.is_by_token = False  # whether a delegation token proves the principal
        self.is_sharing = False  # whether the client has fetched for a share group
        self.decisions: Decisions | None = None  # what the principal may do
        self.limits: ClientLimits | None = None  # the quotas of the principal and the client id
        # While the client logs in, and later if it has to authenticate again. Else ``None``.
        self.authentication: Authentication | None = None
        self.node_id = NO_NODE  # the broker whose identity the client has proved
        self.client_id: str | None = None  # of the newest request
        self.client_id_bytes = b""  # as sent
        self.client_id_length = -1  # -1: there is none
        self.header = request_header(0)  # of the length of the newest client id
        self.software_name = ""  # "" before ApiVersions of version 3
        self.software_version = ""
        # Set by the connection: has nothing read for so many seconds.
        self.mute_connection: Callable[[float, Again | None], None] | None = None
        # Set by the connection: has it end between two requests.
        self.end_connection: Callable[[], None] | None = None
        self._is_closed = False
        self._on_close: dict[Callable[[Session], None], None] = {}

    def become(
        self, principal: Principal, groups: tuple[str, ...] = (), *, is_by_token: bool = False
    ) -> None:
        """Set the principal of the requests from now on, and its groups."""
        self.principal = principal
        self.groups = groups
        self.is_by_token = is_by_token
        self.decisions = None
        self.limits = None

    def mute(self, seconds: float, again: Again | None = None) -> None:
        """Have nothing read from the client for so long; answers are sent.

        ``again`` returns, at the end of that time, for how many seconds more.
        """
        if self.mute_connection is not None:
            self.mute_connection(seconds, again)

    def end(self) -> None:
        """Have the connection end once the requests received so far are answered.

        Does nothing while the client logs in.
        """
        if self.end_connection is not None:
            self.end_connection()

    def note_client_id(self, client_id: bytes | None) -> None:
        """Set the client id of the newest request. Only called if it has changed."""
        self.client_id_bytes = client_id or b""
        self.client_id_length = -1 if client_id is None else len(client_id)
        self.header = request_header(len(self.client_id_bytes))
        # The text is only displayed. A replacement character would be longer than the byte that it
        # replaces, and the id too long for an answer.
        self.client_id = None if client_id is None else client_id.decode("utf-8", "ignore")
        self.limits = None

    def on_close(self, callback: Callable[[Session], None]) -> None:
        """Have ``callback`` called once, when the connection is closed. It must not raise.

        If it is closed already, it is called now: requests that were received before are handled.
        """
        if self._is_closed:
            callback(self)
        else:
            self._on_close[callback] = None

    def closed(self) -> None:
        """Call the callbacks of ``on_close``."""
        self._is_closed = True
        callbacks = tuple(self._on_close)
        self._on_close.clear()
        for callback in callbacks:
            callback(self)
