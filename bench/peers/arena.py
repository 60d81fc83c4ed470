"""The servers of a workload, each on the server core and started at its first use."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from bench.peers.cores import pinned_to
from bench.peers.peer import Peer
from bench.process import Node
from bench.usage import process_tree
from tools.server_process import is_running

_SETTLING_SECONDS = 1.5  # for overdue heartbeats, timers, and the clean-up of deleted topics


class Arena:
    """At most one server of each peer; those that are not measured are idle on the same core.

    An idle virtual machine still runs for some 25 ms of every second. That CPU time counts only
    for itself, but it adds to the latency of others: ``stopped_except`` prevents it.
    """

    def __init__(self, folder: Path, server_core: int, client_core: int) -> None:
        self.server_core = server_core
        self.client_core = client_core
        self._folder = folder
        self._numbers = itertools.count()
        self._running: dict[str, tuple[Node, Path, ExitStack]] = {}

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._running):
            self._stop(name)

    def node(self, peer: Peer) -> Node:
        """Return the peer's server, or a new and empty one if that has ended."""
        if peer.name in self._running and not is_running(self._running[peer.name][0].pid):
            self._stop(peer.name)
        if peer.name not in self._running:
            folder = self.fresh_folder(peer)
            stack = ExitStack()
            node = stack.enter_context(self.started(peer, folder))
            self._running[peer.name] = node, folder, stack
        return self._running[peer.name][0]

    def folder(self, peer: Peer) -> Path:
        """Return the folder of the peer's running server."""
        return self._running[peer.name][1]

    @contextmanager
    def stopped_except(self, peer: Peer | None) -> Iterator[None]:
        """Stop the processes of the other servers; at the end resume them and let them settle.

        Their sessions must outlast the block: see ``SESSION_MS`` in ``peer``.
        """
        own_name = None if peer is None else peer.name
        others = [one for name, (one, _, _) in self._running.items() if name != own_name]
        pids = [pid for other in others if is_running(other.pid) for pid in process_tree(other.pid)]
        try:
            _send(pids, signal.SIGSTOP)
            yield
        finally:
            _send(pids, signal.SIGCONT)
            time.sleep(_SETTLING_SECONDS)

    def fresh_folder(self, peer: Peer) -> Path:
        """Return a new folder that is prepared for a start of the peer."""
        folder = self._folder / f"{peer.name}-{next(self._numbers)}"
        peer.prepare(folder)
        return folder

    @contextmanager
    def started(self, peer: Peer, folder: Path) -> Iterator[Node]:
        """Run the peer with this folder on the server core."""
        with ExitStack() as stack:
            with pinned_to(self.server_core):
                node = stack.enter_context(peer.run(folder))
            yield node

    def _stop(self, name: str) -> None:
        _, _, stack = self._running.pop(name)
        stack.close()


def _send(pids: list[int], signal_number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a child that has ended
            os.kill(pid, signal_number)
