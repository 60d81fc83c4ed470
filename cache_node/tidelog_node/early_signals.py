"""Makes SIGTERM and SIGINT end the process at once, until its event loop handles them.

The kernel drops signals to the first process of a container that have no handler. So a node that
still starts would go on until the container's grace period is over and it is killed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_FIRST_PROCESS_ID = 1


def let_signals_end() -> None:
    """Make the signals end the process at once.

    Where SIGINT does so already, ``asyncio.run`` sets no handler of its own. To replace that one
    ``signal`` would take its text, with that of a task, which needs ``inspect`` too.
    """
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    let_signals_end_first_process()


def let_signals_end_first_process() -> None:
    """Make the signals end the process at once if it is the first one of a container."""
    if os.getpid() == _FIRST_PROCESS_ID:
        for number in NUMBERS:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    """End the process with the status that a shell gives to one that a signal has ended."""
    os._exit(128 + number)
