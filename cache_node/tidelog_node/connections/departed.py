"""Tells whether the client of a socket that is not read has left."""

from __future__ import annotations

import fcntl
import select
import struct
import termios

_COUNT = struct.Struct("i")


def has_departed(descriptor: int) -> bool:
    """Return whether the client has closed its end, and nothing that it sent is unread.

    Unread bytes may be requests without an answer, which still count. Never waits.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    if not poll.poll(0):
        return False
    (unread,) = _COUNT.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_COUNT.size)))
    return not unread
