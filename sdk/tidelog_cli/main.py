"""Where the command ``tidelog`` begins: what must come before its imports, which take a while."""

from __future__ import annotations

import io
import os
import signal
import sys


def app() -> None:
    """Run the command that the arguments name."""
    # There is nothing to tidy up yet: Ctrl-C ends the process at once, without a traceback.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_streams()
    from tidelog_node.processes.init_process import leave_first_process

    leave_first_process()
    from typer.main import get_command

    from tidelog_cli.commands import app as commands

    command = get_command(commands)
    signal.signal(signal.SIGINT, before)
    command()


def _open_streams() -> None:
    """Open stdin, stdout and stderr if the caller has closed them, and let stdout take any text.

    A socket would get the number of a closed one otherwise, and be written to as if it were it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without UTF-8 shows an escape for a letter that it does not have.
        sys.stdout.reconfigure(errors="backslashreplace")
