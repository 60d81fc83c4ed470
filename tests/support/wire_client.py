"""A client that sends raw bytes, such as no stock client sends."""

from __future__ import annotations

import datetime
import io
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from kio.serial import entity_reader, entity_writer
from tidelog_core.message_schemas import load_request_schema, load_response_schema

TIMEOUT_SECONDS = 60.0


def frame(api_key: int, version: int, correlation_id: int, body: bytes, *, tags: bytes) -> bytes:
    """Return a request with its size and header; ``tags`` is empty for the old header."""
    data = struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test" + tags + body
    return struct.pack(">i", len(data)) + data


def produce_body(
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = 1,
    timeout_ms: int = 1000,
) -> bytes:
    """Return the body of a Produce request of versions 3 to 8."""
    name = topic.encode()
    return (
        struct.pack(">hhi", -1, acks, timeout_ms)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">ii", 1, partition)
        + (struct.pack(">i", -1) if records is None else struct.pack(">i", len(records)) + records)
    )


def fetch_body(
    topic: str,
    offset: int,
    *,
    partition: int | Sequence[int] = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 1_048_576,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    isolation_level: int = 0,
) -> bytes:
    """Return the body of a Fetch request of version 11, for one partition or several."""
    name = topic.encode()
    partitions = [partition] if isinstance(partition, int) else partition
    return (
        struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, isolation_level)
        + struct.pack(">ii", *session)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">i", len(partitions))
        + b"".join(
            struct.pack(">iiqqi", one, leader_epoch, offset, -1, partition_max_bytes)
            for one in partitions
        )
        + struct.pack(">ih", 0, 0)
    )


def encode(schema: Any, entity: object) -> bytes:
    """Return the bytes of a kio entity."""
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


def milliseconds(count: int) -> datetime.timedelta:
    """Return a duration as kio wants it."""
    return datetime.timedelta(milliseconds=count)


class WireClient:
    """One connection to a node."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> None:
        """``host``: the address to connect from, one of 127.0.0.0/8. ``context``: for TLS."""
        self.socket = socket.create_connection(
            ("127.0.0.1", port), TIMEOUT_SECONDS, source_address=(host, 0)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket)
        self.correlation_id = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Return the next answer without its size. Raises ``EOFError`` if the connection is closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed_by_node(self) -> bool:
        """Return whether the node closes the connection without another answer."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def call(self, entity: Any) -> Any:
        """Send a kio request and return the kio response."""
        schema = type(entity)
        version, api_key = schema.__version__, schema.__api_key__
        tags = b"\x00" if schema.__flexible__ else b""
        self.correlation_id += 1
        body = encode(schema, entity)
        self.send(frame(api_key, version, self.correlation_id, body, tags=tags))
        return self._response(api_key, version, is_flexible=schema.__flexible__ and api_key != 18)

    def call_together(self, entities: Iterable[Any]) -> list[Any]:
        """Send kio requests of one kind in one go and return the kio responses."""
        frames = []
        for entity in entities:
            schema = type(entity)
            version, api_key = schema.__version__, schema.__api_key__
            assert schema.__flexible__
            self.correlation_id += 1
            body = encode(schema, entity)
            frames.append(frame(api_key, version, self.correlation_id, body, tags=b"\x00"))
        self.send(b"".join(frames))
        self.correlation_id -= len(frames)  # Answers come in the order of the requests.
        answers = []
        for _ in frames:
            self.correlation_id += 1
            answers.append(self._response(api_key, version, is_flexible=True))
        return answers

    def produce(self, topic: str, records: bytes | None, *, version: int = 8, **fields: Any) -> Any:
        """Produce one batch and return the partition's answer."""
        self.correlation_id += 1
        body = produce_body(topic, records, **fields)
        self.send(frame(0, version, self.correlation_id, body, tags=b""))
        response = self._response(0, version, is_flexible=False)
        return response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, **fields: Any) -> Any:
        """Fetch one partition and return its answer."""
        return self.fetch_response(topic, offset, **fields).responses[0].partitions[0]

    def fetch_response(self, topic: str, offset: int, **fields: Any) -> Any:
        """Fetch one partition and return the whole response."""
        self.correlation_id += 1
        self.send(frame(1, 11, self.correlation_id, fetch_body(topic, offset, **fields), tags=b""))
        return self._response(1, 11, is_flexible=False)

    def _response(self, api_key: int, version: int, *, is_flexible: bool) -> Any:
        data = self.receive()
        assert struct.unpack_from(">i", data) == (self.correlation_id,)
        schema: Any = load_response_schema(api_key, version)
        response, _ = entity_reader(schema)(memoryview(data), 4 + is_flexible)
        return response

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError("closed by the node")
            data += part
        return data


def api_versions_request(version: int = 0) -> Any:
    """Return the simplest request there is."""
    schema: Any = load_request_schema(18, version)
    if version >= 3:
        return schema(client_software_name="test", client_software_version="1")
    return schema()
