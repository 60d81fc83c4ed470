"""A node whose event loop a test can hold up: ``python -m tests.support.stalling_node``.

SIGUSR1 keeps the main thread, which runs the loop, busy for ``TEST_STALL_SECONDS``. It holds
the interpreter's lock as any long callback does. The node itself has no code for this.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from tidelog_node.__main__ import main

from tests.support.node_process import NodeProcess

STALL_SECONDS = "TEST_STALL_SECONDS"


class StallingNode(NodeProcess):
    """One node; ``stall`` keeps its loop busy once."""

    def command(self) -> list[str]:
        """Return the command line that starts the node."""
        command = super().command()
        command[command.index("tidelog_node")] = __name__
        return command

    def stall(self) -> None:
        """Hold up the loop from now on."""
        os.kill(self.pid, signal.SIGUSR1)


def keep_busy(seconds: float) -> None:
    """Return that much later, without waiting for anything."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


if __name__ == "__main__":
    seconds = float(os.environ[STALL_SECONDS])
    signal.signal(signal.SIGUSR1, lambda *_: keep_busy(seconds))
    sys.exit(main())
