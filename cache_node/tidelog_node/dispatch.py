"""From frames to handlers: request headers, the table of APIs, errors that close.

Hot routes (Produce, Fetch) parse the frame itself, and their handlers usually answer
immediately. Every other API is a control route: one call, made by the connection in the order
of its requests, decodes the request as its route's newest class, handles and answers it. A
thread decodes large requests and encodes large answers, and requests with many elements run
one after the other (``request_turns``).

A request that cannot be parsed, an unknown API or an unsupported version closes the
connection, as in Kafka. Only ApiVersions answers an unsupported version, in version 0 with its
supported versions (KIP-511). An unexpected exception of a handler is logged with its traceback
and closes the connection, because no answer fits every API.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from kio.static.constants import EntityType
from tidelog_core.errors import ErrorCode, MalformedMessage, TooManyElements
from tidelog_core.message_reader import ElementBudget
from tidelog_core.message_schemas import load_request_schema, load_response_schema

from tidelog_node.answers import Answer, CloseConnection, ControlReply, PendingReply, Reply
from tidelog_node.counters import NodeCounters
from tidelog_node.fairness.partition_pace import MANY_ELEMENTS, NotYet, PartitionPace
from tidelog_node.fairness.request_turns import LargeRequest, LargeRequests
from tidelog_node.requests.routes import (
    EncodedResponse,
    HotRoute,
    RequestContext,
    Route,
    is_encoded,
)
from tidelog_node.requests.session import NO_NODE, Session
from tidelog_node.throttling.counted_work import counted
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.messages import (
    build,
    find_error_codes,
    has_more_elements,
    read_request,
    write_response,
)
from tidelog_node.wire.primitives import (
    INT32,
    PARSE_ERRORS,
    MalformedRequest,
    request_header,
    skip_tagged_fields,
)

logger = logging.getLogger(__name__)

API_VERSIONS_KEY = 18
ELEMENTS_SETTING = "socket.request.max.elements"
PARTITIONS_SETTING = "socket.request.max.partitions"
MANY_BYTES_MIN = 2_048  # a smaller request cannot name many partitions
LARGE_REQUEST_BYTES_MIN = 32_768  # a thread decodes a larger control request
FEW_ELEMENTS = 1_000  # one with more is handled, and answered, in the lane of large requests
_SIZE_CORRELATION = struct.Struct(">ii")
_SHORTEST_HEADER = request_header(0)
HEADER_SIZE = _SHORTEST_HEADER.size  # without the client id


@dataclass(frozen=True, slots=True)
class _ControlCall:
    """The route and classes of one API version."""

    route: Route
    request_class: type[Any]  # the newest of the route
    is_flexible: bool
    has_throttle_time: bool  # of the answer


class Dispatch:
    """The handler of every frame of a node."""

    def __init__(
        self,
        hot: Iterable[HotRoute],
        control: Iterable[Route],
        *,
        elements_max: int,
        partitions_max: int,
        throttle: Throttle | None = None,
        counters: NodeCounters | None = None,
    ) -> None:
        """``elements_max`` bounds the elements of all arrays of a control request.

        ``partitions_max`` bounds those of a hot route's request. Without ``throttle`` the time of
        requests has no limit.
        """
        self._throttle = throttle
        self._counters = counters or NodeCounters()
        self._hot = {route.api_key: route for route in hot}
        self._control: dict[tuple[int, int], Route] = {}
        for route in control:
            for version in range(route.min_version, route.max_version + 1):
                key = (route.api_key, version)
                if key in self._control:
                    raise ValueError(f"two routes for API {key[0]} version {key[1]}")
                self._control[key] = route
        self._calls: dict[tuple[int, int], _ControlCall] = {}
        self._elements_max = elements_max
        self._partitions_max = partitions_max
        self._pace = PartitionPace()
        self._large = LargeRequests()

    def close(self) -> None:
        """Stop the thread of large requests."""
        self._large.close()

    def add(self, route: HotRoute) -> None:
        """Serve another API from now on."""
        self._hot[route.api_key] = route

    def __call__(self, frame: memoryview, session: Session) -> Answer:
        """Return the answer to a frame. Raises ``CloseConnection`` and ``NotYet``."""
        try:
            header = session.header if len(frame) >= session.header.size else _SHORTEST_HEADER
            api_key, version, correlation_id, id_length, client_id = header.unpack_from(frame)
            if id_length != session.client_id_length or client_id != session.client_id_bytes:
                _note_client_id(frame, id_length, session)
            position = HEADER_SIZE + id_length if id_length > 0 else HEADER_SIZE
            hot = self._hot.get(api_key)
            context = RequestContext(api_key, version, correlation_id, session, len(frame))
            throttle = self._throttle
            context.timer = throttle.timer_of(session) if throttle is not None else None
            if hot is None:
                return self._start_control(frame, position, context)
            if not hot.min_version <= version <= hot.max_version:
                raise CloseConnection(f"version {version} of API {api_key} is not supported")
            if version >= hot.flexible_from:
                # Nearly all requests have none.
                position = skip_tagged_fields(frame, position) if frame[position] else position + 1
            request = None
            if hot.recall is not None:
                request = hot.recall(frame, position, version, session)
            if request is None:
                request = hot.parse(frame, position, version, self._partitions_max)
        except PARSE_ERRORS as error:
            raise CloseConnection(f"malformed request: {error!r}") from error
        except TooManyElements as problem:
            raise CloseConnection(
                f"a request of API {api_key}: {problem}, see {PARTITIONS_SETTING}"
            ) from problem
        if hot.weigh is not None:
            has_many = hot.weigh(request) > MANY_ELEMENTS
        else:
            has_many = len(frame) > MANY_BYTES_MIN and request.element_count > MANY_ELEMENTS
        if has_many:
            is_follower = session.node_id != NO_NODE
            began = self._pace.begin(session.client_host, is_follower=is_follower)
            try:
                return self._handle_hot(hot, request, context)
            finally:
                self._pace.end(began)
        return self._handle_hot(hot, request, context)

    def _handle_hot(self, hot: HotRoute, request: Any, context: RequestContext) -> Answer:
        timer = context.timer
        if timer is not None:
            timer.resume()
        try:
            answer = hot.handle(request, context)
        except (CloseConnection, NotYet):
            raise
        except Exception as problem:
            logger.exception("request failed")
            raise CloseConnection(f"request failed: {problem!r}") from problem
        durations = self._counters.request(hot.api_key)
        if isinstance(answer, PendingReply):
            if timer is not None:
                timer.pause()  # An answered request has been counted.
            answer.count_in(durations, context.received_at)
        else:
            durations.observe(time.monotonic() - context.received_at)
        return answer

    def _start_control(
        self, frame: memoryview, position: int, context: RequestContext
    ) -> ControlReply:
        api_key, version = context.api_key, context.api_version
        call = self._calls.get((api_key, version)) or self._load(api_key, version)
        if call is None:
            if api_key != API_VERSIONS_KEY:
                raise CloseConnection(f"version {version} of API {api_key} is not supported")
            return self._unsupported_api_versions(context)
        if call.is_flexible:
            position = skip_tagged_fields(frame, position)
        # Decoded only in its turn, because a decoded request takes many times the memory.
        body = bytes(frame[position:])
        timer = context.timer
        if timer is not None:
            return ControlReply(lambda: counted(self._answer(call, body, context), timer))
        return ControlReply(lambda: self._answer(call, body, context))

    async def _answer(self, call: _ControlCall, body: bytes, context: RequestContext) -> Reply:
        try:
            if len(body) > LARGE_REQUEST_BYTES_MIN:
                async with self._large.turn(context.session.client_host) as turn:
                    request, element_count = await turn.work(self._read, call, body, context)
                    if element_count > FEW_ELEMENTS:
                        return await self._answer_in(turn, call, request, context)
            else:
                request, element_count = self._read(call, body, context)
                if element_count > FEW_ELEMENTS:
                    async with self._large.turn(context.session.client_host) as turn:
                        return await self._answer_in(turn, call, request, context)
            # It has few elements, even if it is long. It may wait for other such requests, like a
            # JoinGroup with a large subscription, so it must not hold the lane.
            response = await self._handle_control(call, request, context)
            if not is_encoded(response) and has_more_elements(response, FEW_ELEMENTS):
                return await self._large.work(self._encode, call, context, response)
            return self._encode(call, context, response)
        except Exception as error:
            return self._answer_failed(call, context, error)
        finally:
            durations = self._counters.request(context.api_key)
            durations.observe(time.monotonic() - context.received_at)

    async def _answer_in(
        self, turn: LargeRequest, call: _ControlCall, request: object, context: RequestContext
    ) -> Reply:
        """Answer a request with many elements, while it holds the lane."""
        response = await self._handle_control(call, request, context)
        return await turn.work(self._encode, call, context, response)

    async def _handle_control(
        self, call: _ControlCall, request: object, context: RequestContext
    ) -> object:
        response = await call.route.handle(request, context)
        if context.timer is not None and self._throttle is not None:
            self._throttle.timed(context)
        if not is_encoded(response):
            for code in find_error_codes(response, elements_max=FEW_ELEMENTS):
                self._counters.note_error(context.api_key, code)
        return response

    def _read(self, call: _ControlCall, body: bytes, context: RequestContext) -> tuple[object, int]:
        """Return the request and the number of elements of its arrays.

        Raises ``MalformedMessage`` and ``TooManyElements``.
        """
        budget = ElementBudget(self._elements_max)
        newest = call.request_class
        request = read_request(
            context.api_key, context.api_version, body, newest=newest, budget=budget
        )
        return request, self._elements_max - budget.left

    def _answer_failed(
        self, call: _ControlCall, context: RequestContext, problem: Exception
    ) -> Reply:
        """Return the answer to a failed request. Raises ``CloseConnection`` if there is none."""
        if isinstance(problem, CloseConnection):
            if problem.last_response is not None:
                problem.last_answer = self._encode(call, context, problem.last_response)
            raise problem
        if isinstance(problem, MalformedMessage):
            reason = f"malformed request of API {context.api_key}: {problem}"
            raise CloseConnection(reason) from problem
        if isinstance(problem, TooManyElements):
            return self._refuse(call, context, problem)
        logger.error("request failed", exc_info=problem, extra={"api_key": context.api_key})
        raise CloseConnection(f"request failed: {problem!r}") from problem

    def _refuse(
        self, call: _ControlCall, context: RequestContext, problem: TooManyElements
    ) -> Reply:
        """Return an answer with the error. Raises ``CloseConnection`` if it has no field for it."""
        reason = f"a request of API {context.api_key}: {problem}, see {ELEMENTS_SETTING}"
        schema: type[Any] = load_response_schema(context.api_key, context.api_version)
        places = {field.name for field in fields(schema)}
        if "error_code" not in places:
            raise CloseConnection(reason)
        logger.warning("request refused", extra={"reason": reason})
        answer: dict[str, object] = {"error_code": problem.code}
        if "error_message" in places:
            answer["error_message"] = reason
        # In the request's version: empty fields of the newest one may be null, which older
        # versions do not allow.
        return self._encode(call, context, build(schema, **answer))

    def _encode(self, call: _ControlCall, context: RequestContext, response: object) -> Reply:
        if isinstance(response, EncodedResponse):
            response = response.response if context.throttle_ms else response.body
        if context.throttle_ms and call.has_throttle_time:
            response = _throttled(response, context.throttle_ms)
        body = (
            response
            if isinstance(response, bytes)
            else write_response(context.api_key, context.api_version, response)
        )
        # The ApiVersions response header stays version 0: a client that does not yet know
        # the broker's versions must be able to read it. Source: KIP-511.
        has_tags = call.is_flexible and context.api_key != API_VERSIONS_KEY
        head = bytearray(8 + has_tags)
        size_bytes = len(head) - 4 + len(body)
        _SIZE_CORRELATION.pack_into(head, 0, size_bytes, context.correlation_id)
        return [head, body]

    def _load(self, api_key: int, version: int) -> _ControlCall | None:
        route = self._control.get((api_key, version))
        if route is None:
            return None
        schema = load_request_schema(api_key, version)
        assert schema.__type__ is EntityType.request
        # On the loop: a lazy module that two threads load at the same time may be seen incomplete.
        response_schema: type[Any] = load_response_schema(api_key, version)
        call = _ControlCall(
            route,
            load_request_schema(api_key, route.max_version),
            schema.__flexible__,
            any(field.name == "throttle_time" for field in fields(response_schema)),
        )
        self._calls[api_key, version] = call
        return call

    def _unsupported_api_versions(self, context: RequestContext) -> ControlReply:
        oldest = self._load(API_VERSIONS_KEY, 0)
        if oldest is None:
            raise CloseConnection("ApiVersions is not supported")
        table = replace(oldest.route, handle=_answer_unsupported(oldest.route.handle))
        call = replace(oldest, route=table)
        known = RequestContext(API_VERSIONS_KEY, 0, context.correlation_id, context.session)
        # The body of an unknown version cannot be decoded; version 0 has none.
        return ControlReply(lambda: self._answer(call, b"", known))


def _note_client_id(frame: memoryview, id_length: int, session: Session) -> None:
    if id_length < 0:
        session.note_client_id(None)
    elif HEADER_SIZE + id_length > len(frame):
        raise MalformedRequest("the client id does not fit its request")
    else:
        session.note_client_id(bytes(frame[HEADER_SIZE : HEADER_SIZE + id_length]))


def _throttled(response: Any, throttle_ms: int) -> object:
    """Return the response with the throttle time."""
    if isinstance(response, bytes):  # A response encoded by its handler begins with it.
        return INT32.pack(throttle_ms) + response[INT32.size :]
    return replace(response, throttle_time=timedelta(milliseconds=throttle_ms))


def _answer_unsupported(
    handle: Callable[[Any, RequestContext], Awaitable[object]],
) -> Callable[[Any, RequestContext], Awaitable[object]]:
    async def answer(request: object, context: RequestContext) -> object:
        response: Any = await handle(request, context)
        if isinstance(response, EncodedResponse):
            response = response.response
        own = tuple(api for api in response.api_keys if api.api_key == API_VERSIONS_KEY)
        return replace(response, error_code=ErrorCode.unsupported_version, api_keys=own)

    return answer
