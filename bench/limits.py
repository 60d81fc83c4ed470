"""Measures the machine's limits by bare loops, for comparison with a node's figures."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

from crc32c import crc32c
from tidelog_core.config import NodeConfig
from tidelog_node.connections.server import UNPACED

MIB = 1 << 20


def sendfile_gigabytes_per_cpu_second(
    total_bytes: int = 8 << 30, *, client_core: int | None = None
) -> float:
    """Send a cached file over loopback, without other work; return the rate.

    The send buffer has a node's default size. The receiver's CPU time does not count. It stays on
    ``client_core``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        path.write_bytes(os.urandom(MIB) * 64)
        receiver, sender = loopback_pair()
        sink = threading.Thread(target=_drain, args=(receiver, client_core))
        sink.start()
        with sender, path.open("rb") as file:
            sender.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, NodeConfig().socket_send_buffer_bytes
            )
            # Only this thread's time counts: the receiver represents the client's machine.
            before = time.thread_time()
            sent = 0
            while sent < total_bytes:
                sent += os.sendfile(sender.fileno(), file.fileno(), sent % (32 * MIB), MIB)
            used = time.thread_time() - before
        sink.join()
        receiver.close()
    return sent / used / 1e9


def append_gigabytes_per_cpu_second(
    total_bytes: int = 4 << 30, *, client_core: int | None = None
) -> float:
    """Receive from loopback, check CRC-32C and append to a file, as any broker must.

    Return the rate. The sender's CPU time does not count. It stays on ``client_core``.
    """
    with tempfile.TemporaryDirectory() as folder:
        receiver, sender = loopback_pair()
        source = threading.Thread(target=_pour, args=(sender, total_bytes, client_core))
        source.start()
        buffer = memoryview(bytearray(MIB))
        used = 0.0
        taken = 0
        with receiver, (Path(folder) / "log").open("wb", buffering=0) as log:
            before = time.thread_time()
            while size := receiver.recv_into(buffer, MIB, socket.MSG_WAITALL):
                crc32c(buffer[:size])
                log.write(buffer[:size])
                taken += size
                if taken % (512 * MIB) < size:
                    log.seek(0)  # overwrite: the loop measures copies, and the file stays small
            used = time.thread_time() - before
        source.join()
        sender.close()
    return taken / used / 1e9


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Return a receiver and its sender, which is not paced: BBR paces even loopback, by timers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
    return receiver, sender


def _drain(receiver: socket.socket, core: int | None) -> None:
    _keep_to(core)
    buffer = bytearray(4 * MIB)
    while receiver.recv_into(buffer):
        pass


def _pour(sender: socket.socket, total_bytes: int, core: int | None) -> None:
    _keep_to(core)
    block = os.urandom(MIB)
    for _ in range(total_bytes // MIB):
        sender.sendall(block)
    sender.shutdown(socket.SHUT_WR)


def _keep_to(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})  # of the calling thread
