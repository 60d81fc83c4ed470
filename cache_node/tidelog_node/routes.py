"""What the server can be asked: one route per API and range of versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener_host: str  # the local address of the connection


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
