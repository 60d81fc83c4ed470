"""Has SIGTERM and SIGINT end the process at once, until its event loop is told of them.

To the first process of a container a signal does nothing unless it has a handler, so a node that
still starts would not end until its time is over and it is killed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_FIRST_PROCESS_ID = 1


def let_signals_end() -> None:
    """Have the signals end the process at once.

    Where SIGINT does so already, ``asyncio.run`` sets no handler of its own. To replace that one
    ``signal`` would take its text, with that of a task, which needs ``inspect`` too.
    """
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    let_signals_end_first_process()


def let_signals_end_first_process() -> None:
    """Have the signals end the process at once if it is the first one of a container."""
    if os.getpid() == _FIRST_PROCESS_ID:
        for number in NUMBERS:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    """End the process with the status that a shell gives to one that a signal has ended."""
    os._exit(128 + number)
