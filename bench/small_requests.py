"""A raw client that sends one-record produce requests, five in flight, and checks every answer."""

from __future__ import annotations

import io
import socket
import struct
from datetime import timedelta

from kio.schema.produce.v9 import request as produce
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_writer
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.wire_messages import build

IN_FLIGHT = 5


def send_small_requests(address: tuple[str, int], topic: str, count: int) -> None:
    """Send ``count`` requests of one 100-byte record each, acks=1. Raises on any error."""
    frame = _frame(topic)
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


def _frame(topic: str) -> bytes:
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"v" * 100, ())])
    request = build(
        produce.ProduceRequest,
        acks=1,
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
