"""Programs that tests start can be interrupted, also if the tests run in a shell's background.

A shell has those ignore SIGINT, and programs inherit that.
"""

from __future__ import annotations

import signal


def be_interruptible() -> None:
    """Let programs that are started from now on be ended by SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
