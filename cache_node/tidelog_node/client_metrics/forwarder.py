"""Forwards the metrics that clients push to a receiver of OpenTelemetry's protocol over HTTP.

Pushes wait in a bounded queue. One task sends them, several in a request: by Protocol Buffers'
rules, messages one after the other are one message. A client never waits for the receiver, so
metrics are lost while it is away for long or too slow. Lost pushes are counted, and logged once a
minute.

Source: the OTLP specification 1.x, OTLP/HTTP: which answers are worth another attempt.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from tidelog_node.counters import ClientMetricsTraffic

if TYPE_CHECKING:
    from aiohttp import ClientSession

logger = logging.getLogger(__name__)

WAITING_BYTES_MAX = 16_777_216
WAITING_PUSHES_MAX = 16_384  # a push may be empty, but takes memory
REQUEST_BYTES_MAX = 4_194_304  # of one request, unless a single push is larger
REQUEST_SECONDS_MAX = 10.0
LAST_SECONDS_MAX = 1.0  # for the pushes that are left when the node stops
DELAYS_SECONDS = (1.0, 2.0, 4.0)  # before each further attempt
TRY_AGAIN_STATUSES = frozenset({429, 502, 503, 504})
REMIND_SECONDS = 60.0  # between two lines about losses
PATH = "/v1/metrics"
_HEADERS = {"Content-Type": "application/x-protobuf", "User-Agent": "tidelog"}


class Forwarder:
    """The one sender of a node. For its event loop."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        counters: ClientMetricsTraffic,
        *,
        delays_seconds: tuple[float, ...] = DELAYS_SECONDS,
    ) -> None:
        self._url = endpoint + PATH
        self._headers = {**_HEADERS, **headers}
        self._counters = counters
        self._delays_seconds = delays_seconds
        self._waiting: deque[bytes] = deque()
        self._has_some = asyncio.Event()
        self._logged_at = -REMIND_SECONDS

    def offer(self, metrics: bytes) -> bool:
        """Queue the metrics of one push; return whether there was room for them."""
        is_full = self._counters.waiting_bytes + len(metrics) > WAITING_BYTES_MAX
        if is_full or len(self._waiting) >= WAITING_PUSHES_MAX:
            self._counters.full_count += 1
            most = f"{WAITING_BYTES_MAX} bytes or {WAITING_PUSHES_MAX} pushes"
            self._log_loss(f"more than {most} wait for the receiver")
            return False
        self._counters.waiting_bytes += len(metrics)
        self._waiting.append(metrics)
        self._has_some.set()
        return True

    async def run(self) -> None:
        """Send offered pushes until cancelled."""
        async with self._client() as client:
            while True:
                await self._has_some.wait()
                await self._send_next(client)

    async def close(self) -> None:
        """Send the pushes that are left, if that is possible immediately."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS_MAX), self._client() as client:
                while self._waiting:
                    await self._send_next(client)

    def _client(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar

        timeout = ClientTimeout(total=REQUEST_SECONDS_MAX)
        # No cookies, and no proxy of the environment: requests go to the endpoint and nowhere else.
        return ClientSession(timeout=timeout, cookie_jar=DummyCookieJar(), trust_env=False)

    async def _send_next(self, client: ClientSession) -> None:
        """Send the pushes that waited longest. They wait on while it is not decided."""
        parts = [self._waiting[0]]
        size_bytes = len(parts[0])
        for metrics in list(self._waiting)[1:]:
            if size_bytes + len(metrics) > REQUEST_BYTES_MAX:
                break
            parts.append(metrics)
            size_bytes += len(metrics)
        counters = self._counters
        refusal = await self._send(client, b"".join(parts))
        for _ in parts:
            self._waiting.popleft()
        counters.waiting_bytes -= size_bytes
        if not self._waiting:
            self._has_some.clear()
        if refusal is None:
            counters.forwarded_count += len(parts)
            counters.forwarded_bytes += size_bytes
            return
        self._log_loss(refusal.reason)
        if refusal.is_final:
            counters.refused_count += len(parts)
        else:
            counters.unreachable_count += len(parts)

    async def _send(self, client: ClientSession, body: bytes) -> _Refusal | None:
        """Return why the last attempt failed, ``None`` if the receiver has the metrics."""
        refusal = await self._attempt(client, body)
        for delay_seconds in self._delays_seconds:
            if refusal is None or refusal.is_final:
                break
            await asyncio.sleep(delay_seconds)
            refusal = await self._attempt(client, body)
        return refusal

    async def _attempt(self, client: ClientSession, body: bytes) -> _Refusal | None:
        from aiohttp import ClientError

        try:
            async with client.post(
                self._url, data=io.BytesIO(body), headers=self._headers, allow_redirects=False
            ) as answer:
                status = answer.status
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return _Refusal(f"{type(error).__name__}: {error}", is_final=False)
        if status == 200:
            return None
        return _Refusal(f"HTTP status {status}", is_final=status not in TRY_AGAIN_STATUSES)

    def _log_loss(self, reason: str) -> None:
        now = monotonic()
        if now - self._logged_at >= REMIND_SECONDS:
            self._logged_at = now
            extra = {"url": self._url, "reason": reason[:500]}
            logger.warning("metrics of clients are lost", extra=extra)


class _Refusal:
    """The reason why a receiver does not have the sent metrics."""

    __slots__ = ("is_final", "reason")

    def __init__(self, reason: str, *, is_final: bool) -> None:
        self.reason = reason
        self.is_final = is_final  # another attempt would fail too
