"""The version that a node and its processes must share, because their messages carry none.

A node starts processes for as long as it runs: tier workers, and those that inspect batches, check
values or rewrite segments. If its files were replaced in the meantime, the next process is another
program, whose messages may mean something else. So a node names its version on the command line of
each, and a process of another version ends before it reads or opens anything. The node says so, and
starts no further one for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.software_version import __version__

if TYPE_CHECKING:
    from tidelog_node.node_health import NodeHealth

logger = logging.getLogger(__name__)

# Raised with every change of the command line or of a message, for programs between two releases.
PROTOCOL = 4
# As this process was loaded: the files on the disk may be others by now.
NODE_VERSION = f"{__version__}/{PROTOCOL}"
OTHER_VERSION_STATUS = 76  # exit status of a process of another version; EX_PROTOCOL in sysexits.h
OTHER_VERSION_DELAY_S = 60.0  # the earlier files may be put back
OTHER_VERSION = "worker-version"  # the fault

_OPTION = "--node-version="


class OtherVersion(TidelogError):
    """The node's files were replaced while it ran, and a process of it is of another version."""

    code = ErrorCode.request_timed_out
    hint = "restart the node"

    def __init__(self, process_name: str) -> None:
        super().__init__(
            f"the files of this node were replaced while it ran, and its {process_name} is of"
            " another version: restart the node"
        )


def version_argument() -> str:
    """Return the argument that names this program's version to a process."""
    return f"{_OPTION}{NODE_VERSION}"


def require_same_version(arguments: Sequence[str], *, has_log: bool = False) -> None:
    """Exit with ``OTHER_VERSION_STATUS`` if a node of another version has started this process.

    Only this argument is read: those of another version may be unknown here. A process that
    ``has_log`` says why.
    """
    named = [text.removeprefix(_OPTION) for text in arguments if text.startswith(_OPTION)]
    if named == [NODE_VERSION]:
        return
    if has_log:
        logger.error(
            "tier worker is of another version than its node, and ends",
            extra={
                "version": NODE_VERSION,
                "node_version": named[0] if named else "unknown",
                "hint": "the node's files were replaced while it ran: restart the node",
            },
        )
    raise SystemExit(OTHER_VERSION_STATUS)


class VersionWatch:
    """Whether processes of one kind are of the node's version. For the node's event loop."""

    def __init__(self, health: NodeHealth, process_name: str) -> None:
        """``process_name`` says to a person which kind it is."""
        self._health = health
        self._process_name = process_name
        self._not_before = float("-inf")

    def require_start(self) -> None:
        """Raise ``OtherVersion`` if the next process would be of another version, too."""
        if time.monotonic() < self._not_before:
            raise OtherVersion(self._process_name)

    def ended(self, status: int | None) -> None:
        """Raise ``OtherVersion`` if this exit status says that the process was of another one."""
        if status != OTHER_VERSION_STATUS:
            return
        self._not_before = time.monotonic() + OTHER_VERSION_DELAY_S
        problem = OtherVersion(self._process_name)
        if self._health.report(OTHER_VERSION, str(problem), subject=self._process_name):
            logger.error(
                "process of the node cannot serve",
                extra={
                    "process_name": self._process_name,
                    "reason": OTHER_VERSION,
                    "hint": str(problem),
                },
            )
        raise problem

    def answered(self) -> None:
        """Note that a process has answered: it is of this version."""
        self._health.clear(OTHER_VERSION, subject=self._process_name)
