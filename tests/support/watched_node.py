"""A real node process that tells which modules it has executed."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.support import module_watch
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Executed:
    """The modules of a node."""

    modules: frozenset[str]  # all that have been executed
    by_loop: tuple[str, ...]  # the files of those that the event loop has executed since last time


class WatchedNode(NodeProcess):
    """One node, whose modules can be asked for."""

    def command(self) -> list[str]:
        """Return the command line that starts the node."""
        command = super().command()
        command[command.index("tidelog_node")] = module_watch.__name__
        return command

    def spawn(self) -> None:
        """Start the process; ``wait_ready`` is yet to be called."""
        self.environment[module_watch.FILE] = str(self._file)
        super().spawn()

    def executed(self) -> Executed:
        """Return what has been executed until now."""
        self._file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        eventually(self._file.exists, "the node tells its modules")
        told = json.loads(self._file.read_text())
        return Executed(frozenset(told["modules"]), tuple(told["by_loop"]))

    @property
    def _file(self) -> Path:
        return self.log_path.with_suffix(".modules")
