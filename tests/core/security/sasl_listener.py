"""A listener that knows nothing but SASL: where real clients show what they send.

It answers ApiVersions, SaslHandshake v0 and v1, and SaslAuthenticate v0 and v1, and closes the
connection once a client has logged in or was refused.
"""

from __future__ import annotations

import queue
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidelog_core.errors import AuthenticationFailed

SASL_AUTHENTICATION_FAILED, UNSUPPORTED_VERSION = 58, 35
SERVED = {18: (0, 3), 17: (0, 1), 36: (0, 1), 3: (0, 8)}

# Returns the answer to a client's token, and the user's name once that is proved.
Exchange = Callable[[bytes], tuple[bytes, str | None]]


class SaslListener:
    """Its address, and who has logged in."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        # A user's name; ``None`` for a client that was refused.
        self.outcomes: queue.Queue[str | None] = queue.Queue()


@contextmanager
def listening(new_exchange: Callable[[], Exchange], mechanism: str) -> Iterator[SaslListener]:
    """Listen, with another exchange for each connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            _serve(self.request, new_exchange(), mechanism, listener.outcomes.put)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        listener = SaslListener(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield listener
        finally:
            server.shutdown()
            thread.join()


def _serve(
    connection: Any, exchange: Exchange, mechanism: str, tell: Callable[[str | None], None]
) -> None:
    is_raw = False  # after version 0 of SaslHandshake, tokens come without headers
    while (frame := _receive(connection)) is not None:
        if is_raw:
            try:
                answer, user = exchange(frame)
            except AuthenticationFailed:
                return tell(None)
            _send(connection, answer)
            if user is not None:
                return tell(user)
            continue
        key, version, correlation_id, client_size = struct.unpack_from(">hhih", frame)
        head, body = struct.pack(">i", correlation_id), frame[10 + max(client_size, 0) :]
        if key == 18:
            _send(connection, head + _api_versions(version))
        elif key == 17:
            is_raw = version == 0
            _send(connection, head + struct.pack(">hi", 0, 1) + _string(mechanism))
        else:
            assert key == 36, f"API {key} before the end of the authentication"
            lifetime = bytes(8) if version else b""
            try:
                answer, user = exchange(body[4:])
            except AuthenticationFailed as refused:
                code = struct.pack(">h", SASL_AUTHENTICATION_FAILED)
                _send(connection, head + code + _string(str(refused)) + bytes(4) + lifetime)
                return tell(None)
            size = struct.pack(">i", len(answer))
            _send(connection, head + struct.pack(">hh", 0, -1) + size + answer + lifetime)
            if user is not None:
                return tell(user)
    return None


def _api_versions(version: int) -> bytes:
    ranges = [struct.pack(">hhh", key, *versions) for key, versions in SERVED.items()]
    if version == 3:
        body = b"".join(part + b"\0" for part in ranges)
        return struct.pack(">hb", 0, len(ranges) + 1) + body + bytes(4) + b"\0"
    code = UNSUPPORTED_VERSION if version > 3 else 0
    throttle = bytes(4) if version in (1, 2) else b""
    return struct.pack(">hi", code, len(ranges)) + b"".join(ranges) + throttle


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _send(connection: Any, data: bytes) -> None:
    connection.sendall(struct.pack(">i", len(data)) + data)


def _receive(connection: Any) -> bytes | None:
    size = _exactly(connection, 4)
    return None if size is None else _exactly(connection, struct.unpack(">i", size)[0])


def _exactly(connection: Any, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data
