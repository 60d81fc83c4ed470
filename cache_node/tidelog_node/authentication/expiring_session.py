"""The frame handler of a session that ends unless its client authenticates again (KIP-368).

A session by a delegation token also ends when the token is removed. In Kafka it would go on until
the token would have expired.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tidelog_node.answers import Answer
from tidelog_node.authentication.authentication import Authentication
from tidelog_node.connections.frame_receiver import FrameHandler
from tidelog_node.requests.session import Session

API_KEY = struct.Struct(">h")


class ExpiringSession:
    """Forwards requests while the session lasts, at the cost of two comparisons each."""

    __slots__ = ("_authentication", "_dispatch", "_now")

    def __init__(
        self, authentication: Authentication, dispatch: FrameHandler, now: Callable[[], float]
    ) -> None:
        self._authentication = authentication
        self._dispatch = dispatch
        self._now = now

    def __call__(self, frame: memoryview, session: Session) -> Answer:
        """Return the answer to a frame. Raises ``CloseConnection`` and ``NotYet``."""
        self._authentication.note_changes()
        if self._now() >= self._authentication.expires_at:
            (api_key,) = API_KEY.unpack_from(frame)
            self._authentication.admit_expired(api_key)
        return self._dispatch(frame, session)
