"""Where the command ``tidelog`` begins: what must come before its imports, which take a while."""

from __future__ import annotations

import signal


def app() -> None:
    """Run the command that the arguments name."""
    # There is nothing to tidy up yet: Ctrl-C ends the process at once, without a traceback.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidelog_node.init_process import leave_first_process

    leave_first_process()
    from typer.main import get_command

    from tidelog_cli.commands import app as commands

    command = get_command(commands)
    signal.signal(signal.SIGINT, before)
    command()
