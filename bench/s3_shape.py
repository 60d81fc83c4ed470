"""A server in front of an S3 emulator that answers ranged GETs as slowly as S3 does.

S3 sends an answer's first byte after tens of milliseconds, and 85 to 90 MB/s on one connection,
but on any number of connections. An emulator on this machine answers within a millisecond, with
gigabytes per second, until the CPU is saturated. This server answers ranged GETs after
``first_byte_s``, and no faster than ``bytes_per_second`` on each connection. The kernel does the
pacing (``SO_MAX_PACING_RATE``) and sends from the page cache (``sendfile``), so it takes almost no
CPU time. All other requests are forwarded to the emulator. An object is read from it once, at the
first GET.

The shape may be changed between requests; ``None`` answers at the machine's speed.
"""

from __future__ import annotations

import hashlib
import http.client
import multiprocessing
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path

SO_MAX_PACING_RATE = 47  # Linux: bytes a second
UNPACED = 2**64 - 1
HEAD_BYTES_MAX = 1 << 16
DATE = "Sat, 01 Jan 2022 00:00:00 GMT"
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The timing of answers to ranged GETs."""

    first_byte_s: float
    bytes_per_second: int  # of one connection


S3 = Shape(first_byte_s=0.025, bytes_per_second=87_000_000)
QUARTER = Shape(first_byte_s=4 * S3.first_byte_s, bytes_per_second=S3.bytes_per_second // 4)


class ShapedServer:
    """The running server, as its parent process uses it."""

    def __init__(self, port: int, shape: SynchronizedArray[float]) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._shape = shape

    def set_shape(self, shape: Shape | None) -> None:
        """Set the timing from the next request on."""
        self._shape[:2] = (
            (0.0, 0.0) if shape is None else (shape.first_byte_s, shape.bytes_per_second)
        )

    @property
    def get_count(self) -> int:
        """Return the number of GETs so far."""
        return int(self._shape[2])


@contextmanager
def serve(folder: Path, endpoint: str) -> Iterator[ShapedServer]:
    """Run the server in front of the emulator at ``endpoint``; it stores objects in ``folder``."""
    context = multiprocessing.get_context("spawn")
    shape = context.Array("d", 3)  # the third counts GETs
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        process = context.Process(
            target=_serve, args=(listener, folder, (host, int(port)), shape), daemon=True
        )
        process.start()
        try:
            yield ShapedServer(listener.getsockname()[1], shape)
        finally:
            process.terminate()
            process.join()


def _serve(
    listener: socket.socket,
    folder: Path,
    stand_in: tuple[str, int],
    shape: SynchronizedArray[float],
) -> None:
    objects = _Objects(folder, stand_in)
    while True:
        client, _ = listener.accept()
        threading.Thread(
            target=_Connection(client, objects, stand_in, shape).run, daemon=True
        ).start()


class _Objects:
    """Copies of the emulator's objects as files, each read once. For any thread."""

    def __init__(self, folder: Path, stand_in: tuple[str, int]) -> None:
        self._folder = folder
        self._stand_in = stand_in
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    def open(self, path: str) -> int | None:
        """Return the descriptor of a file with the object's bytes, ``None`` if there is none."""
        with self._lock:
            if path not in self._files:
                connection = http.client.HTTPConnection(*self._stand_in)
                connection.request("GET", path)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                if answer.status != 200:
                    return None
                copy = self._folder / hashlib.sha256(path.encode()).hexdigest()
                copy.write_bytes(data)
                self._files[path] = os.open(copy, os.O_RDONLY)
            return self._files[path]


class _Connection:
    def __init__(
        self,
        client: socket.socket,
        objects: _Objects,
        stand_in: tuple[str, int],
        shape: SynchronizedArray[float],
    ) -> None:
        self._client = client
        self._objects = objects
        self._stand_in = http.client.HTTPConnection(*stand_in)
        self._shape = shape

    def run(self) -> None:
        """Answer requests until the client closes the connection."""
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    more = self._client.recv(HEAD_BYTES_MAX)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                received = self._answer(head + b"\r\n", received)
        except OSError:
            return
        finally:
            self._client.close()
            self._stand_in.close()

    def _answer(self, head: bytes, received: bytes) -> bytes:
        """Answer one request; return the bytes received after it."""
        method, path, _ = head.partition(b"\r\n")[0].decode().split(" ")
        length = _LENGTH.search(head)
        body = bytearray(received)
        size_bytes = int(length[1]) if length else 0
        while len(body) < size_bytes:
            body += self._client.recv(1 << 20)
        if method == "GET":
            with self._shape.get_lock():
                self._shape[2] += 1
        ranges = _RANGE.search(head)
        file = self._objects.open(path) if method == "GET" and ranges else None
        if file is None or ranges is None:
            self._pass_on(method, path, head, bytes(body[:size_bytes]))
        else:
            self._send_range(file, int(ranges[1]), int(ranges[2]) + 1)
        return bytes(body[size_bytes:])

    def _send_range(self, file: int, start: int, end: int) -> None:
        first_byte_s, bytes_per_second = self._shape[:2]
        rate = struct.pack("@Q", int(bytes_per_second) or UNPACED)
        self._client.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        size_bytes = os.fstat(file).st_size
        end = min(end, size_bytes)
        head = (
            f"HTTP/1.1 206 Partial Content\r\nContent-Length: {end - start}\r\n"
            f"Content-Range: bytes {start}-{end - 1}/{size_bytes}\r\n"
            f'ETag: "{file}"\r\nLast-Modified: {DATE}\r\n\r\n'
        )
        if first_byte_s:
            time.sleep(first_byte_s)
        self._client.sendall(head.encode(), socket.MSG_MORE)
        while start < end:
            start += os.sendfile(self._client.fileno(), file, start, end - start)

    def _pass_on(self, method: str, path: str, head: bytes, body: bytes) -> None:
        lines = [line.partition(":") for line in head.decode().split("\r\n")[1:] if line]
        headers = {name: value.strip() for name, _, value in lines}
        self._stand_in.request(method, path, body, headers)
        answer = self._stand_in.getresponse()
        data = answer.read()
        lines_back = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        lines_back += [
            f"{name}: {value}"
            for name, value in answer.getheaders()
            if name.lower() not in _HOP_HEADERS
        ]
        size = answer.getheader("Content-Length") if method == "HEAD" else str(len(data))
        lines_back.append(f"Content-Length: {size or 0}")
        self._client.sendall("\r\n".join([*lines_back, "", ""]).encode() + data)
