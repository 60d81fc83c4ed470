"""A raw client that sends one-record produce requests, five in flight, and checks every answer."""

from __future__ import annotations

import socket
import struct

from tidelog_core.records.batch import Record, build_batch

from bench.raw_producers import TIMESTAMP_MS, build_produce

IN_FLIGHT = 5


def send_small_requests(address: tuple[str, int], topic: str, count: int) -> None:
    """Send ``count`` requests of one 100-byte record each, acks=1. Raises on any error."""
    batch = build_batch([Record(0, TIMESTAMP_MS, None, b"v" * 100, ())])
    frame = build_produce(topic, batch, acks=1)
    with socket.create_connection(address) as client, client.makefile("rb") as answers:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = received = 0
        while received < count:
            while sent < count and sent - received < IN_FLIGHT:
                client.sendall(frame)
                sent += 1
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
            # correlation id, tags, one topic: name; one partition: index, error code
            error_at = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
            (error,) = struct.unpack_from(">h", answer, error_at)
            if error != 0:
                raise RuntimeError(f"the node answered error code {error}")
            received += 1
