"""Has the event loop of the main thread call a function at SIGTERM and SIGINT.

So would ``loop.add_signal_handler``, but it asks ``inspect`` whether the function is a coroutine's,
and ``inspect`` takes 0.7 MB with ``ast`` and ``dis``.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_READ_SIZE_BYTES = 4096


def let_signals_end() -> None:
    """Have the signals end the process at once.

    Where SIGINT does so already, ``asyncio.run`` sets no handler of its own. To replace that one
    ``signal`` would take its text, with that of a task, which needs ``inspect`` too.
    """
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def on_ending_signals(call: Callable[[], None]) -> Iterator[None]:
    """Call the function in the running loop at each of the signals, until the block ends.

    Later signals end the process at once.
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
            let_signals_end()
            loop.remove_reader(woken)
            signal.set_wakeup_fd(before)


def _ignore(_: int, __: FrameType | None) -> None:
    """Stand for a handler in Python, without which the interpreter writes no number."""
