"""An HTTP proxy between nodes and a store of AWS that refuses, delays and loses answers.

throttle     some requests are refused, as the store refuses what is over its rate
lose         some requests are carried out and their answers are never sent: the caller
             times out, or has its connection closed or reset, and cannot know
truncate     some requests are carried out, and their answers end in the middle
reset        some connections are reset before the request has reached the store
late         some requests are carried out seconds later, when their caller may have given up
expire       requests without the valid session token are refused
delay        every answer comes later
cut          no request gets through
overwrite    conditions of writes are taken out of the requests
unchecked    checksums that the store would compute byte by byte are taken out, too
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tests.support.http_messages import address_of, header, read_message
from tests.support.tcp_proxy import ProxiedConnection, Streams, TcpProxy, reset

HOLD_SECONDS = 8.0  # longer than a caller waits for an answer of DynamoDB
_CONDITION = re.compile(rb"\r\nif-none-match:[^\r]*", re.IGNORECASE)
_SLOW_CHECKSUM = re.compile(rb"\r\nx-amz-checksum-crc64nvme:[^\r]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreBehaviour:
    """The faults of requests. The default passes them on."""

    throttled_part: float = 0.0  # of the requests, 0 to 1
    lost_part: float = 0.0  # of the answers, 0 to 1
    truncated_part: float = 0.0  # of the answers that have a body, 0 to 1
    reset_part: float = 0.0  # of the requests, 0 to 1
    late_part: float = 0.0  # of the requests, 0 to 1; their answers are never sent
    late_s: float = 0.0  # they are carried out at most so late
    valid_token: str | None = None  # the session token that is accepted; None accepts any or none
    delay_s: float = 0.0
    hold_s: float = HOLD_SECONDS  # how long a lost answer may be waited for
    is_cut: bool = False
    is_read_only: bool = False  # every write is denied, as by a policy of the bucket
    overwrites: bool = False  # conditions of writes do not reach the store
    is_unchecked: bool = False  # MiniStack takes 80 ns a byte for a CRC-64/NVME
    methods: frozenset[str] | None = (
        None  # the methods that faults and the delay apply to, None for all
    )


STORE_PASSES = StoreBehaviour()


@dataclass(frozen=True, slots=True)
class Refusals:
    """The store's refusals. Each takes the head of the request and returns an answer."""

    throttled: Callable[[bytes], bytes]
    expired: Callable[[bytes], bytes]


class StoreProxy(TcpProxy):
    """Relays one request at a time per connection to ``upstream``."""

    def __init__(
        self,
        upstream: str,
        chance: random.Random,
        refusals: Refusals | None = None,
        *,
        pace_s: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        """``pace_s`` gives the seconds that a request takes by its method, whatever else is wrong."""
        super().__init__(address_of(upstream))
        self.behaviour = STORE_PASSES
        self.counts: Counter[str] = Counter()  # the number of requests by fault
        self._chance = chance
        self._refusals = DYNAMODB if refusals is None else refusals
        self._pace_s = pace_s
        self._closing = asyncio.Event()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._closing.set()
        await super().__aexit__(kind, error, trace)

    def behave(self, behaviour: StoreBehaviour) -> None:
        """Treat requests like this from now on."""
        self.behaviour = behaviour
        if behaviour.is_cut:
            self.cut()

    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay request after request, until something happens to the connection."""
        server = await connection.dial()
        while await self._relay_one(connection.client, server):
            pass

    async def _relay_one(self, client: Streams, server: Streams) -> bool:
        reader, writer = client
        head, body = await read_message(reader)
        method = head.partition(b" ")[0].decode()
        behaviour = self._behaviour_for(method)
        if behaviour.is_cut:
            return False
        if self._happens(behaviour.reset_part, "reset"):
            reset(writer)
            return False
        refusal = self._refusal(behaviour, head)
        if refusal is not None:
            writer.write(refusal)
            await writer.drain()
            return True
        if behaviour.overwrites:
            head = _CONDITION.sub(b"", head)
        if behaviour.is_unchecked:
            head = _SLOW_CHECKSUM.sub(b"", head)
        if behaviour.late_part > 0 and self._happens(behaviour.late_part, "late"):
            self.keep(self._carry_out_late(head + body, method, behaviour.late_s))
            await self._leave_unanswered(writer, behaviour.hold_s)
            return False
        server[1].write(head + body)
        answer = await read_message(server[0], has_body=method != "HEAD")
        self.counts["carried out"] += 1
        return await self._answer(writer, method, behaviour, *answer)

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        behaviour: StoreBehaviour,
        head: bytes,
        body: bytes,
    ) -> bool:
        """Pass an answer on; return whether the connection may go on."""
        if self._happens(behaviour.lost_part, "lost"):
            await self._leave_unanswered(writer, behaviour.hold_s)
            return False
        if (delay_s := behaviour.delay_s + self._pace_s(method)) > 0:
            await self._pause(delay_s)
        if len(body) > 1 and self._happens(behaviour.truncated_part, "truncated"):
            writer.write(head + body[: len(body) // 2])
            writer.close()
            await writer.wait_closed()
            return False
        writer.write(head + body)
        await writer.drain()
        return True

    async def _leave_unanswered(self, writer: asyncio.StreamWriter, hold_s: float) -> None:
        if self._chance.random() < 0.5:
            await self._pause(hold_s)
        elif self._chance.random() < 0.5:
            reset(writer)

    async def _carry_out_late(self, request: bytes, method: str, late_s: float) -> None:
        """Send the request by itself, whatever has become of the caller's connection."""
        await self._pause(self._chance.random() * late_s)
        if self._closing.is_set():
            return
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answers, upstream = await asyncio.open_connection(*self._target)
            try:
                upstream.write(request)
                await read_message(answers, has_body=method != "HEAD")
            finally:
                upstream.transport.abort()
        self.counts["carried out"] += 1

    def _behaviour_for(self, method: str) -> StoreBehaviour:
        behaviour = self.behaviour
        if behaviour.methods is not None and method not in behaviour.methods:
            return STORE_PASSES
        return behaviour

    def _happens(self, part: float, what: str) -> bool:
        happens = self._chance.random() < part
        self.counts[what] += happens
        return happens

    def _refusal(self, behaviour: StoreBehaviour, head: bytes) -> bytes | None:
        if self._happens(behaviour.throttled_part, "throttled"):
            return self._refusals.throttled(head)
        if behaviour.is_read_only and not head.startswith((b"GET ", b"HEAD ")):
            self.counts["denied"] += 1
            return _s3_error(head, "403 Forbidden", "AccessDenied", "Access Denied")
        token = behaviour.valid_token
        if token is not None and header(head, b"x-amz-security-token") != token.encode():
            self.counts["expired"] += 1
            return self._refusals.expired(head)
        return None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


def _answer(status: str, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def _dynamodb_error(code: str, message: str, **fields: object) -> bytes:
    error = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **fields}
    body = json.dumps(error).encode()
    return _answer("400 Bad Request", "application/x-amz-json-1.0", body)


def _dynamodb_throttled(head: bytes) -> bytes:
    if b"TransactWriteItems" in (header(head, b"x-amz-target") or b""):
        reasons = [{"Code": "ThrottlingError", "Message": "slow down"}, {"Code": "None"}]
        message = "Transaction cancelled, specific reasons [ThrottlingError, None]"
        return _dynamodb_error("TransactionCanceledException", message, CancellationReasons=reasons)
    return _dynamodb_error(
        "ProvisionedThroughputExceededException",
        "The level of configured provisioned throughput for the table was exceeded.",
    )


def _dynamodb_expired(_: bytes) -> bytes:
    return _dynamodb_error(
        "ExpiredTokenException", "The security token included in the request is expired"
    )


def _s3_error(head: bytes, status: str, code: str, message: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    answer = _answer(status, "application/xml", body)
    return answer[: -len(body)] if head.startswith(b"HEAD ") else answer


def _s3_throttled(head: bytes) -> bytes:
    return _s3_error(head, "503 Slow Down", "SlowDown", "Please reduce your request rate.")


def _s3_expired(head: bytes) -> bytes:
    return _s3_error(head, "400 Bad Request", "ExpiredToken", "The provided token has expired.")


DYNAMODB = Refusals(_dynamodb_throttled, _dynamodb_expired)
S3 = Refusals(_s3_throttled, _s3_expired)
