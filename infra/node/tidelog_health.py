"""Whether a node answers, and what systemd hears of it.

A node's event loop does everything that clients wait for. If it hangs, the kernel still takes
connections, so a connection proves nothing: an answer does. A node that closes the connection
(it has as many as it allows) is at work, too.

systemd starts the launcher with ``Type=notify``: the service is started when the launcher says so,
and is killed and started again if it does not speak for ``WatchdogSec``. Source: sd_notify(3).
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

PROBE_SECONDS_MAX = 2.0
_API_VERSIONS, _VERSION, _CORRELATION_ID, _NO_CLIENT_ID = 18, 0, 1, -1
# Kafka's oldest form of ApiVersions, which each version of a node answers, without a login too.
_REQUEST = struct.pack(">ihhih", 10, _API_VERSIONS, _VERSION, _CORRELATION_ID, _NO_CLIENT_ID)


class Health(Enum):
    """What came of asking a node."""

    SERVES = "it answers"
    IS_AT_WORK = "it closed the connection"
    IS_SILENT = "it does not answer"


@dataclass(frozen=True, slots=True)
class Probe:
    """One listener of a node."""

    host: str
    port: int
    has_tls: bool

    def ask(self, seconds_max: float = PROBE_SECONDS_MAX) -> Health:
        """Return whether the node answers a request within the time."""
        try:
            with socket.create_connection((self.host, self.port), seconds_max) as plain:
                plain.settimeout(seconds_max)
                return self._answer(plain)
        except OSError:
            return Health.IS_SILENT  # Nobody listens, or the time is over.

    def _answer(self, plain: socket.socket) -> Health:
        try:
            connection = _unverified().wrap_socket(plain) if self.has_tls else plain
            with connection:
                connection.sendall(_REQUEST)
                return Health.SERVES if connection.recv(1) else Health.IS_AT_WORK
        except TimeoutError:
            return Health.IS_SILENT
        except OSError:
            return Health.IS_AT_WORK  # Reset, or TLS refused: there is somebody.


class Notifier:
    """Speaks to systemd; says nothing if systemd does not listen."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._is_ready = False

    def note(self, health: Health) -> None:
        """Say that the node is started with its first answer, and afterwards that it is alive."""
        if health is Health.SERVES and not self._is_ready:
            self._is_ready = True
            self._send(b"READY=1\nSTATUS=serving")
        if health is not Health.IS_SILENT and self._is_ready:
            self._send(b"WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the node is being stopped."""
        self._send(b"STOPPING=1\nSTATUS=handing over")

    def _send(self, message: bytes) -> None:
        if self._address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(message, self._address)


def _unverified() -> ssl.SSLContext:
    # It asks the machine's own node, and sends it nothing secret.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
