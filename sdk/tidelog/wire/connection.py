"""A pipelined connection to a node: answers are matched to requests by id.

Answers come in the order of the requests, so many requests may be in flight at once. A
request that times out closes the connection, as in Kafka's clients: later requests would
wait just as long, and a late answer must not be taken for another's. Every request on a
broken connection fails with ``ConnectionFailed``; whether the node executed it is
unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kio.schema.api_versions.v3 import request as api_versions
from kio.schema.errors import ErrorCode
from tidelog_core.wire_messages import build

from tidelog.errors import (
    ConnectionFailed,
    MalformedResponse,
    RequestTimedOut,
    TidelogError,
    error_for,
)
from tidelog.wire.answer_frames import AnswerFrames
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.requests import (
    API_VERSIONS,
    FETCH_BY_ID,
    Api,
    Buffer,
    NodeVersions,
    VersionRanges,
    choose_version,
    correlation_id_of,
    decode_api_versions,
    decode_response,
    encode_request,
)
from tidelog.wire.tls_refusals import tls_refusal
from tidelog.wire.wake_size import WakeSize

logger = logging.getLogger(__name__)

SOFTWARE_NAME = "tidelog-python"
SOFTWARE_VERSION = "0.1.0"
# The longest throttle time that is believed. Nodes have windows of seconds, the field has days.
THROTTLE_S_MAX = 600.0
_FETCH_KEY = FETCH_BY_ID.key


class Address(NamedTuple):
    """A node's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Pending(NamedTuple):
    api: Api
    version: int
    future: asyncio.Future[Any]
    timeout_s: float
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """An open connection, made by ``opening``. Use it only from its event loop."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        has_tls: bool = False,
        buffers: FrameBuffers | None = None,
    ) -> None:
        """``buffers`` are those of the client."""
        self.address = address
        self._awaits_tls_refusal = has_tls  # until the first answer
        self._client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._versions: VersionRanges = {API_VERSIONS.key: (3, 3)}
        self.features: Mapping[str, int] = {}  # the cluster's finalized levels, by name
        self._pending: dict[int, _Pending] = {}
        self._next_correlation_id = 0
        self._error: TidelogError | None = None
        self._is_retired = False
        self._retirement: asyncio.TimerHandle | None = None
        self._throttled_until = 0.0  # the node reads nothing before (the loop's time)
        self._closed = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._frames = AnswerFrames(address, buffers or FrameBuffers(), self._is_fetch)
        self._wake_size: WakeSize | None = None

    @property
    def is_open(self) -> bool:
        """Whether new requests should use the connection."""
        return self._error is None and self._transport is not None and not self._is_retired

    @property
    def in_flight_count(self) -> int:
        """Return the number of requests in flight."""
        return len(self._pending)

    @property
    def versions(self) -> VersionRanges:
        """Return the ranges that the node announced, by API key."""
        return self._versions

    def send(self, api: Api, message: object, *, timeout_s: float) -> asyncio.Future[Any]:
        """Send a request now; the future gets the response as the API's newest class.

        Requests reach the node in the order of the calls. Raises ``UnsupportedVersion``,
        ``InvalidRequest`` for a text without UTF-8, and ``ConnectionFailed`` when the connection
        is broken already.
        """
        version = choose_version(api, self._versions)
        correlation_id = self._write(api, version, message)
        future: asyncio.Future[Any] = self._loop.create_future()
        begins_at = max(self._loop.time(), self._throttled_until)
        timer = self._loop.call_at(begins_at + timeout_s, self._on_timeout, api, timeout_s)
        self._pending[correlation_id] = _Pending(api, version, future, timeout_s, timer)
        return future

    async def request(self, api: Api, message: object, *, timeout_s: float) -> Any:
        """Send a request and return its response."""
        return await self.send(api, message, timeout_s=timeout_s)

    async def send_unanswered(self, api: Api, message: object, *, timeout_s: float) -> None:
        """Send a request that has no answer (produce with ``acks=0``).

        Returns when the connection's send buffer has room again. Raises ``RequestTimedOut``, and
        closes the connection, if the node does not read within ``timeout_s``.
        """
        self._write(api, choose_version(api, self._versions), message)
        try:
            async with asyncio.timeout(timeout_s):
                await self._writable.wait()
        except TimeoutError:
            self._fail(
                RequestTimedOut(f"{self.address} did not read {api.name} within {timeout_s:g} s")
            )
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Close the connection; requests still waiting fail with ``ConnectionFailed``."""
        self._fail(ConnectionFailed(f"connection to {self.address} was closed"))
        await self._closed

    def retire_after(self, seconds: float) -> None:
        """Retire after that time: close as soon as no request is in flight."""
        self._retirement = self._loop.call_later(seconds, self._retire)

    async def wait_retired(self) -> None:
        """Return when the connection is closed, if it has retired; else at once."""
        if self._is_retired:
            await asyncio.shield(self._closed)

    def abort(self) -> None:
        """Close the connection without waiting for it."""
        self._fail(ConnectionFailed(f"connection to {self.address} was closed"))

    async def negotiate(self, *, timeout_s: float) -> None:
        """Fetch the node's versions. Raises if it does not answer correctly."""
        request = build(
            api_versions.ApiVersionsRequest,
            client_software_name=SOFTWARE_NAME,
            client_software_version=SOFTWARE_VERSION,
        )
        versions: NodeVersions = await self.send(API_VERSIONS, request, timeout_s=timeout_s)
        error = versions.error
        if error not in (ErrorCode.none, ErrorCode.unsupported_version):
            self._fail(ConnectionFailed(f"{self.address} refused to negotiate"))
            raise error_for(error, None, about=self.address)
        self._versions, self.features = versions.ranges, versions.features
        self._frames.allow_large()

    # -- called by the event loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._wake_size = WakeSize(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests in flight."""
        reason = f": {exc}" if exc is not None else ""
        refusal = tls_refusal(exc, self.address) if self._awaits_tls_refusal else None
        self._fail(refusal or ConnectionFailed(f"connection to {self.address} was lost{reason}"))
        self._frames.forget()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Note that the send buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the send buffer has room."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        del sizehint
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Process every complete frame."""
        try:
            for frame in self._frames.received(nbytes):
                self._on_frame(frame)
        except TidelogError as error:
            self._fail(error)
        if self._wake_size is not None:
            self._wake_size.expect(self._frames.missing_bytes)

    def _is_fetch(self, frame_start: bytes) -> bool:
        pending = self._pending.get(correlation_id_of(frame_start))
        return pending is not None and pending.api.key == _FETCH_KEY

    def _on_frame(self, frame: Buffer) -> None:
        self._awaits_tls_refusal = False
        self._process(frame)
        if self._is_retired and not self._pending:
            self._end_retired()

    def _retire(self) -> None:
        self._is_retired = True
        if not self._pending:
            self._end_retired()

    def _end_retired(self) -> None:
        if self._error is None:
            self._error = ConnectionFailed(f"connection to {self.address} has retired")
            if self._transport is not None:
                self._transport.close()  # after the bytes that are buffered

    def _process(self, frame: Buffer) -> None:
        pending = self._pending.pop(correlation_id_of(frame), None)
        if pending is None:
            if self._error is None:
                self._fail(MalformedResponse(f"{self.address} answered an unknown request"))
            return
        pending.timer.cancel()
        if pending.future.done():  # The caller no longer waits.
            return
        try:
            response: object
            if pending.api is API_VERSIONS:
                response = decode_api_versions(pending.version, frame)
            else:
                response = decode_response(pending.api, pending.version, frame)
        except Exception as problem:
            # Any decoder error is the fault of the node's bytes: the connection cannot be used
            # further, and the caller must not hang.
            error = MalformedResponse(
                f"{self.address} answered {pending.api.name} version {pending.version} "
                f"with {len(frame)} bytes that do not parse: {problem!r}"
            )
            pending.future.set_exception(error)
            self._fail(error)
        else:
            throttle_time = getattr(response, "throttle_time", None)
            if throttle_time:
                self._on_throttled(throttle_time.total_seconds())
            pending.future.set_result(response)

    def _on_throttled(self, seconds: float) -> None:
        """Give requests more time: the node reads none of them before the client may go on."""
        until = self._loop.time() + min(seconds, THROTTLE_S_MAX)
        added_s = until - max(self._loop.time(), self._throttled_until)
        if added_s <= 0:
            return
        self._throttled_until = until
        for correlation_id, pending in self._pending.items():
            pending.timer.cancel()
            timer = self._loop.call_at(
                pending.timer.when() + added_s, self._on_timeout, pending.api, pending.timeout_s
            )
            self._pending[correlation_id] = pending._replace(timer=timer)

    def _write(self, api: Api, version: int, message: object) -> int:
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        frame = encode_request(
            api,
            version,
            correlation_id=correlation_id,
            client_id=self._client_id,
            message=message,
        )
        self._transport.write(frame)
        return correlation_id

    def _on_timeout(self, api: Api, timeout_s: float) -> None:
        self._fail(
            RequestTimedOut(f"{self.address} did not answer {api.name} within {timeout_s:g} s")
        )

    def _fail(self, error: TidelogError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._retirement is not None:
            self._retirement.cancel()
        for pending in self._pending.values():
            pending.timer.cancel()
            if not pending.future.done():
                pending.future.set_exception(error)
        self._pending.clear()
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()
