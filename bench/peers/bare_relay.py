"""A process with only the work that every broker must do between a producer and a consumer.

It accepts the Produce and Fetch requests of `latency` on a port of 127.0.0.1: it receives, appends
to a file, acknowledges, and sends from the file to the waiting fetch. It checks nothing, has one
partition of one topic, and keeps nothing after its end. Its latency is that of the machine: of
loopback, scheduler and client.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from typing import BinaryIO

from bench.peers.frames import Frames

TOPIC = "bare"
_NAME = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
_PRODUCE = 0  # the API's key
_LAST_OFFSET_DELTA = 23  # its position in a batch


@dataclass(slots=True)
class _Log:
    file: BinaryIO
    size_bytes: int = 0
    sent_bytes: int = 0
    end_offset: int = 0
    waiting: tuple[socket.socket, int] | None = None  # the fetching client, and the correlation id

    def append(self, request: bytes) -> None:
        # the topic's name, its one partition: index, records
        position = request.index(_NAME) + len(_NAME) + 4 + 4
        (size,) = struct.unpack_from(">i", request, position)
        batch = bytearray(request[position + 4 : position + 4 + size])
        struct.pack_into(">q", batch, 0, self.end_offset)
        os.pwrite(self.file.fileno(), batch, self.size_bytes)
        self.size_bytes += size
        self.end_offset += 1 + int(struct.unpack_from(">i", batch, _LAST_OFFSET_DELTA)[0])

    def send_what_is_new(self) -> None:
        if self.waiting is None or self.sent_bytes == self.size_bytes:
            return
        (consumer, correlation), self.waiting = self.waiting, None
        size = self.size_bytes - self.sent_bytes
        # index, error code, high watermark, last stable and log start offset, no aborted
        # transactions, preferred replica, size of the records
        partition = struct.pack(
            ">ihqqqiii", 0, 0, self.end_offset, self.end_offset, 0, -1, -1, size
        )
        # throttle time, error code, session id; one topic of one partition
        head = struct.pack(">iihii", correlation, 0, 0, 0, 1) + _NAME + struct.pack(">i", 1)
        head += partition
        consumer.send(struct.pack(">i", len(head) + size) + head, socket.MSG_MORE)
        while self.sent_bytes < self.size_bytes:
            left = self.size_bytes - self.sent_bytes
            self.sent_bytes += os.sendfile(
                consumer.fileno(), self.file.fileno(), self.sent_bytes, left
            )


@dataclass(slots=True)
class _Relay:
    listener: socket.socket
    log: _Log
    connections: dict[int, tuple[socket.socket, Frames]] = field(default_factory=dict)

    def run(self) -> None:
        poll = select.epoll()
        poll.register(self.listener, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.listener.fileno():
                    client, _ = self.listener.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.connections[client.fileno()] = client, Frames(client)
                    poll.register(client, select.EPOLLIN)
                elif not self._serve(*self.connections[descriptor]):
                    poll.unregister(descriptor)
                    self.connections.pop(descriptor)[0].close()
            self.log.send_what_is_new()

    def _serve(self, client: socket.socket, frames: Frames) -> bool:
        """Handle the received requests; return whether the client is still connected."""
        try:
            requests = frames.receive()
        except (EOFError, ConnectionResetError):
            return False
        for request in requests:
            key, _, correlation = struct.unpack_from(">hhi", request)
            if key == _PRODUCE:
                self.log.append(request)
                # one topic of one partition: index, error code, three offsets and times; throttle
                answer = struct.pack(">ii", correlation, 1) + _NAME
                answer += struct.pack(">iihqqqi", 1, 0, 0, 0, -1, 0, 0)
                client.sendall(struct.pack(">i", len(answer)) + answer)
            else:
                self.log.waiting = client, correlation
        return True


def main() -> None:
    """Serve on the port, the only argument, until a signal ends the process."""
    gc.disable()  # It creates no cycles.
    with (
        socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener,
        tempfile.TemporaryFile(buffering=0) as file,
    ):
        _Relay(listener, _Log(file)).run()


if __name__ == "__main__":
    main()
