"""Has the event loop of the main thread call a function at SIGTERM and SIGINT.

So would ``loop.add_signal_handler``, but it asks ``inspect`` whether the function is a coroutine's,
and ``inspect`` takes 0.7 MB with ``ast`` and ``dis``.

Afterwards the signals do nothing: an end in order goes on, also if its sender is impatient. Source:
Kafka's broker, whose JVM passes over signals while its shutdown hooks run.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tidelog_node.processes.early_signals import NUMBERS

_READ_SIZE_BYTES = 4096


@contextmanager
def on_ending_signals(call: Callable[[], None]) -> Iterator[None]:
    """Call the function in the running loop at each of the signals, until the block ends.

    Later signals do nothing: the process is about to end.
    """
    loop = asyncio.get_running_loop()
    # The interpreter writes the number of each signal to ``wakes``: one that comes just before the
    # loop waits wakes it too.
    woken, wakes = socket.socketpair()
    with woken, wakes:
        for one in (woken, wakes):
            one.setblocking(False)

        def take() -> None:
            if any(number in NUMBERS for number in woken.recv(_READ_SIZE_BYTES)):
                call()

        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        loop.add_reader(woken, take)
        try:
            for number in NUMBERS:
                signal.signal(number, _ignore)
                signal.siginterrupt(number, False)
            yield
        finally:
            for number in NUMBERS:
                signal.signal(number, signal.SIG_IGN)
            loop.remove_reader(woken)
            signal.set_wakeup_fd(before)


def _ignore(_: int, __: FrameType | None) -> None:
    """Stand for a handler in Python, without which the interpreter writes no number."""
