"""What the server can be asked: one route per API and range of versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tidelog_node.answers import Answer
from tidelog_node.session import Session


class RequestContext:
    """Who asks, in which version, and what names the answer."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id", "session")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        session: Session,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.session = session
        self.client_id = session.client_id  # of this request: the next one may name another


HotParser = Callable[[memoryview, int, int, int], Any]
"""Takes the frame, where its body starts, the API version and the most elements of its arrays.

Raises ``PARSE_ERRORS`` and ``TooManyElements``. What it returns has an ``element_count``.
"""
HotRecall = Callable[[memoryview, int, int, Session], Any]
"""Takes the frame, where its body starts, the API version and the session.

Returns what the parser would, or ``None`` where the frame has to be parsed.
"""
HotCall = Callable[[Any, RequestContext], Answer]
"""Takes what the parser made. Raises ``CloseConnection``."""


@dataclass(frozen=True, slots=True)
class HotRoute:
    """One API with a codec of its own, over ``[min_version, max_version]``.

    ``advertised_min_version`` may be lower: what clients want to see before they use
    features that newer versions have. ``weigh`` tells the elements that a parsed
    request makes its handler go through, where they may be more than it has. ``recall`` spares
    the parser a request that is much like the last one of its connection.
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
    that has every field of the response classes in the range. A ``TidelogError`` that
    escapes a handler is a bug: handlers put error codes where the API wants them.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Callable[[Any, RequestContext], Awaitable[object]]
