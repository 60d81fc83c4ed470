"""The version that a node and its workers must share, because their messages carry none.

A node starts workers for as long as it runs. If its files were replaced in the meantime, the next
worker is another program, whose messages may mean something else. So a node names its version on
the worker's command line, and a worker of another version ends before it opens anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog_core.software_version import __version__

logger = logging.getLogger(__name__)

# Raised with every change of the command line or of a message, for programs between two releases.
PROTOCOL = 2
# As this process was loaded: the files on the disk may be others by now.
NODE_VERSION = f"{__version__}/{PROTOCOL}"
OTHER_VERSION_STATUS = 76  # exit status of a worker of another version; EX_PROTOCOL in sysexits.h

_OPTION = "--node-version="


def version_argument() -> str:
    """Return the argument that names this program's version to a worker."""
    return f"{_OPTION}{NODE_VERSION}"


def require_same_version(arguments: Sequence[str]) -> None:
    """Exit with ``OTHER_VERSION_STATUS`` if a node of another version has started this worker.

    Only this argument is read: those of another version may be unknown here.
    """
    named = [text.removeprefix(_OPTION) for text in arguments if text.startswith(_OPTION)]
    if named == [NODE_VERSION]:
        return
    logger.error(
        "tier worker is of another version than its node, and ends",
        extra={
            "version": NODE_VERSION,
            "node_version": named[0] if named else "unknown",
            "hint": "the node's files were replaced while it ran: restart the node",
        },
    )
    raise SystemExit(OTHER_VERSION_STATUS)
