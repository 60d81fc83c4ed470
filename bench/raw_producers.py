"""Raw clients that repeat one produce request, with a fixed number in flight.

So the content of a request and the number in flight are known exactly. A client library would
decide them itself.
"""

from __future__ import annotations

import io
import random
import selectors
import socket
import struct
import time
from datetime import timedelta
from types import TracebackType

from kio.schema.produce.v9 import request as produce
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_writer
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.wire_messages import build

RECORD_SIZE_BYTES_MAX = 1024
TIMESTAMP_MS = 1_700_000_000_000
ANSWER_SECONDS_MAX = 30.0
_RECEIVE_BYTES = 65_536


def build_records(size_bytes: int) -> bytes:
    """Return a batch with records of ``size_bytes`` in all, at most 1 KiB each."""
    noise = random.Random(1)
    sizes = [RECORD_SIZE_BYTES_MAX] * (size_bytes // RECORD_SIZE_BYTES_MAX)
    if size_bytes % RECORD_SIZE_BYTES_MAX:
        sizes.append(size_bytes % RECORD_SIZE_BYTES_MAX)
    values = [noise.randbytes(size) for size in sizes]
    return build_batch(
        [Record(at, TIMESTAMP_MS, None, value, ()) for at, value in enumerate(values)]
    )


def build_produce(topic: str, batch: bytes, *, acks: int) -> bytes:
    """Return a request, with its size, that produces the batch to the topic's partition 0."""
    request = build(
        produce.ProduceRequest,
        acks=acks,
        timeout=timedelta(seconds=30),
        topic_data=(
            build(
                produce.TopicProduceData,
                name=topic,
                partition_data=(build(produce.PartitionProduceData, index=0, records=batch),),
            ),
        ),
    )
    header = build(
        RequestHeader, request_api_key=0, request_api_version=9, correlation_id=1, client_id="b"
    )
    body = io.BytesIO()
    entity_writer(RequestHeader)(body, header)
    entity_writer(produce.ProduceRequest)(body, request)
    return struct.pack(">i", body.tell()) + body.getvalue()


class _Client:
    """One connection, its unsent bytes, and the number of missing answers."""

    def __init__(self, sock: socket.socket, frame: bytes, error_at: int) -> None:
        self.sock = sock
        self.in_flight = 0
        self._frame = frame
        self._error_at = error_at  # its position in an answer, after the answer's size
        self._unsent = memoryview(b"")
        self._to_send = 0  # frames after the unsent bytes
        self._received = bytearray()

    def send(self, count: int) -> None:
        """Add ``count`` requests, and send as much as the socket accepts now."""
        self.in_flight += count
        self._to_send += count
        self.go_on()

    def go_on(self) -> None:
        """Send as much as the socket accepts now."""
        while self._unsent or self._to_send:
            if not self._unsent:
                # Small requests go out in one call, as in a client library.
                at_once = max(1, min(self._to_send, _RECEIVE_BYTES // len(self._frame)))
                self._unsent = memoryview(self._frame * at_once if at_once > 1 else self._frame)
                self._to_send -= at_once
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                return

    @property
    def is_blocked(self) -> bool:
        """Whether the next send must wait until the socket is writable."""
        return bool(self._unsent)

    def receive(self) -> int:
        """Return the number of answers received. Raises on any error."""
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the node has closed the connection")
        self._received += data
        count, position = 0, 0
        while len(self._received) - position >= 4:
            (size_bytes,) = struct.unpack_from(">i", self._received, position)
            if len(self._received) - position < 4 + size_bytes:
                break
            (error,) = struct.unpack_from(">h", self._received, position + self._error_at)
            if error:
                raise RuntimeError(f"the node answered error code {error}")
            position += 4 + size_bytes
            count += 1
        del self._received[:position]
        self.in_flight -= count
        return count


class RawProducers:
    """Connections that each keep ``in_flight`` copies of one request unanswered."""

    def __init__(
        self, address: tuple[str, int], topic: str, batch: bytes, *, connections: int, acks: int
    ) -> None:
        frame = build_produce(topic, batch, acks=acks)
        # size, correlation id, tags, one topic: name; one partition: index, error code
        error_at = 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4
        self._clients = []
        self._selector = selectors.DefaultSelector()
        for _ in range(connections):
            sock = socket.create_connection(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            client = _Client(sock, frame, error_at)
            self._clients.append(client)
            self._selector.register(sock, selectors.EVENT_READ, client)

    def __enter__(self) -> RawProducers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._selector.close()
        for client in self._clients:
            client.sock.close()

    def send_for(self, seconds: float, *, in_flight: int, per_second: float | None = None) -> int:
        """Send for this time, wait for all answers, and return their number.

        ``per_second`` is the number of requests a second, of all connections together. Without it,
        a connection sends its next request as soon as an answer arrives. A connection never has
        more than ``in_flight`` requests without an answer.
        """
        began, sent, answered = time.monotonic(), 0, 0
        while True:
            elapsed = time.monotonic() - began
            wait_seconds = ANSWER_SECONDS_MAX
            if elapsed < seconds:
                allowed = len(self._clients) * in_flight
                if per_second is not None:
                    allowed = min(allowed, int(per_second * elapsed) + 1 - sent)
                    wait_seconds = max(0.0, (sent + allowed) / per_second - elapsed)
                sent += self._send(allowed, in_flight)
            elif not any(client.in_flight for client in self._clients):
                return answered
            events = self._selector.select(wait_seconds)
            if not events and wait_seconds == ANSWER_SECONDS_MAX:
                raise TimeoutError(f"no answer within {ANSWER_SECONDS_MAX} s")
            for key, mask in events:
                client = key.data
                if mask & selectors.EVENT_WRITE:
                    client.go_on()
                if mask & selectors.EVENT_READ:
                    answered += client.receive()
                self._watch(client)

    def _send(self, allowed: int, in_flight: int) -> int:
        """Return the number of requests sent: ``allowed`` at most, on the idlest connections."""
        sent = 0
        for client in sorted(self._clients, key=lambda client: client.in_flight):
            count = min(in_flight - client.in_flight, allowed - sent)
            if count > 0:
                client.send(count)
                self._watch(client)
                sent += count
        return sent

    def _watch(self, client: _Client) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.is_blocked else 0)
        if self._selector.get_key(client.sock).events != wanted:
            self._selector.modify(client.sock, wanted, client)
