"""Has the kernel wake the event loop once for many bytes of a large answer, not for each packet.

Each time costs the loop as much as some hundred kilobytes do. No byte comes later for it: the rest
of an answer is of no use without them. Linux takes half of its largest receive buffer at most, and
wakes earlier if memory is short. Source: ``SO_RCVLOWAT`` in socket(7), ``tcp_set_rcvlowat``.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

WAKE_BYTES_MAX = 4 * 1024 * 1024


class WakeSize:
    """The bytes that must have come before the socket counts as readable."""

    def __init__(self, transport: asyncio.BaseTransport, platform: str = sys.platform) -> None:
        self._socket: Any = None
        self._size_bytes = 1
        # With TLS the loop reads other bytes than those of the answer. And only Linux makes sure
        # that so many bytes fit into the receive buffer: elsewhere an answer could be stuck.
        if platform == "linux" and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def expect(self, size_bytes: int) -> None:
        """Note that so many bytes are missing; 0: nothing is known of what comes."""
        wanted = min(max(size_bytes, 1), WAKE_BYTES_MAX)
        if wanted == self._size_bytes or self._socket is None:
            return
        self._size_bytes = wanted
        with suppress(OSError):  # The system may not have it.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
