"""Connects to a host by whichever of its addresses takes the connection; for calls that block.

As ``wire.host_addresses``: an address that drops packets would take the whole timeout.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time

NEXT_SECONDS = 0.25  # Source: RFC 8305 section 5
AT_ONCE_MAX = 8  # The longest-running attempt is given up for another one.


def dial(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """Return a connected socket that has the timeout. Raises ``OSError``.

    An attempt begins when those before have failed, or after ``NEXT_SECONDS``.
    """
    deadline = time.monotonic() + timeout_s
    waiting = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[::-1]
    problem: OSError = OSError("the host has no address")
    running: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                if waiting:
                    if len(running) == AT_ONCE_MAX:
                        _give_up(running.pop(0), selector)
                    try:
                        running.append(_begun(waiting.pop(), selector))
                    except OSError as error:
                        problem = error
                        continue
                left_s = deadline - time.monotonic()
                for key, _ in selector.select(min(left_s, NEXT_SECONDS) if waiting else left_s):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    running.remove(sock)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        selector.unregister(sock)
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        sock.settimeout(timeout_s)
                        return sock
                    problem = OSError(code, os.strerror(code))
                    _give_up(sock, selector)
                if time.monotonic() >= deadline:
                    raise TimeoutError("timed out")
        finally:
            for sock in running:
                _give_up(sock, selector)
    raise problem


def _begun(found: tuple[object, ...], selector: selectors.BaseSelector) -> socket.socket:
    """Return a socket that is connecting. Raises ``OSError``."""
    family, kind, protocol, _, address = found
    sock = socket.socket(family, kind, protocol)  # type: ignore[arg-type]
    try:
        sock.setblocking(False)
        code = sock.connect_ex(address)  # type: ignore[arg-type]
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        selector.register(sock, selectors.EVENT_WRITE)
    except BaseException:
        sock.close()
        raise
    return sock


def _give_up(sock: socket.socket, selector: selectors.BaseSelector) -> None:
    selector.unregister(sock)
    sock.close()
