"""Gives a container an init: a first process that reaps orphans and forwards signals.

The kernel hands each process whose parent has ended to the first process of its container, and it
stays a zombie until that one waits for it. The workers of a node that was killed are such orphans.
It also drops signals to the first process that have no handler.

So a program that finds itself to be the first process forks. The child runs the program, as any
other process. The first process only forwards signals, waits for all processes that the kernel
hands to it, and ends with the program's exit status. The program never has to tell its own
children from orphans, which it could not do without racing with the waits of ``subprocess`` and
asyncio.

Source: pid_namespaces(7), and what tini does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Set
from contextlib import suppress

from tidelog_node.processes.early_signals import NUMBERS

FIRST_PROCESS_ID = 1
_FORWARDED = (*NUMBERS, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SI_KERNEL = 0x80  # siginfo's code of a signal that the kernel sends itself


def leave_first_process() -> None:
    """Return in a child process if this is the first one of a container, else at once.

    To be called before the program has threads.
    """
    if os.getpid() != FIRST_PROCESS_ID:
        return
    # Where it is ignored the kernel sends none, and reaps the program itself: nothing would say
    # that this has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_status_of(program, watched))


def _status_of(program: int, watched: Set[signal.Signals]) -> int:
    """Reap children until the program ends; return its status, as a shell would."""
    while True:
        received = signal.sigwaitinfo(watched)
        if received.si_signo == signal.SIGCHLD:
            # One signal may stand for several children that ended.
            for ended, status in _ended_children():
                if ended == program:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
        # A terminal sends the signals of its keys to the program, too, but that of its end to the
        # leader of its session alone.
        elif received.si_code != _SI_KERNEL or received.si_signo == signal.SIGHUP:
            with suppress(ProcessLookupError):
                os.kill(program, received.si_signo)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yield their ids and statuses."""
    with suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                return
            yield ended, status
