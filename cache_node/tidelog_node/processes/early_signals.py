"""Makes SIGTERM and SIGINT end the process at once, until its event loop handles them."""

from __future__ import annotations

import signal

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def let_signals_end() -> None:
    """Make the signals end the process at once.

    Where SIGINT does so already, ``asyncio.run`` sets no handler of its own. To replace that one
    ``signal`` would take its text, with that of a task, which needs ``inspect`` too.
    """
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
