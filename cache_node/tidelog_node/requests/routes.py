"""The APIs of the server: one route for an API and a range of its versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog_node.answers import Answer
from tidelog_node.requests.session import Session

if TYPE_CHECKING:
    from tidelog_node.throttling.request_timer import RequestTimer


class RequestContext:
    """The client, API version and correlation id of one request."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "correlation_id",
        "received_at",
        "session",
        "size_bytes",
        "throttle_ms",
        "timer",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        session: Session,
        size_bytes: int = 0,
    ) -> None:
        """``size_bytes`` is the size of the request, without the field of its size."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.session = session
        self.client_id = session.client_id  # of this request: the next one may have another
        self.size_bytes = size_bytes
        self.received_at = session.received_at  # of its last byte, by ``time.monotonic``
        self.throttle_ms = 0  # how long the client must wait: the throttle time of the answer
        self.timer: RequestTimer | None = None  # of a request whose time counts


class EncodedResponse(NamedTuple):
    """A response that many clients get, and its bytes in the version that they asked for."""

    response: Any
    body: bytes


def is_encoded(response: object) -> bool:
    """Return whether a response of a handler is in bytes already: its fields need no look."""
    return isinstance(response, bytes | EncodedResponse)


HotParser = Callable[[memoryview, int, int, int], Any]
"""Parses a request: frame, start of its body, API version, limit of its arrays' elements.

Raises one of ``PARSE_ERRORS``, and ``TooManyElements``. The result has an ``element_count``.
"""
HotRecall = Callable[[memoryview, int, int, Session], Any]
"""Recalls a request: frame, start of its body, API version, session.

Returns the parser's result, or ``None`` if the frame must be parsed.
"""
HotCall = Callable[[Any, RequestContext], Answer]
"""Handles a parsed request. Raises ``CloseConnection``."""


@dataclass(frozen=True, slots=True)
class HotRoute:
    """One API with a codec of its own, over ``[min_version, max_version]``.

    ``advertised_min_version`` may be lower: some clients use features of newer versions only
    if they see it. ``weigh`` returns the number of elements that the handler visits for a
    parsed request, if it may visit more than the request has. ``recall`` avoids parsing a
    request that is similar to the last one of its connection.
    """

    api_key: int
    min_version: int
    max_version: int
    flexible_from: int
    parse: HotParser
    handle: HotCall
    advertised_min_version: int
    weigh: Callable[[Any], int] | None = None
    recall: HotRecall | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One API over versions ``[min_version, max_version]``, both included.

    The handler gets the request as the class of ``max_version`` and returns a response
    with every field of the response classes in the range, its bytes, or both. A
    ``TidelogError`` that escapes a handler is a bug: handlers set the API's error codes.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Callable[[Any, RequestContext], Awaitable[object]]
