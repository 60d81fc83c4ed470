"""How a command reaches the cluster: its options, the environment, files and contexts.

Files are read when a command needs them: a wrong one fails no command that connects to nothing.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tidelog_cli.options import Chosen, chosen
from tidelog_cli.output import note

if TYPE_CHECKING:
    from tidelog.settings.resolving import Connection

_RESOLVED: ContextVar[tuple[Chosen, Connection] | None] = ContextVar("connection", default=None)


def connection() -> Connection:
    """Return the settings that count. Notes go to stderr, once. Raises ``InvalidConfig``."""
    from tidelog.settings.resolving import resolve

    options = chosen()
    known = _RESOLVED.get()
    if known is not None and known[0] is options:
        return known[1]
    found = resolve(os.environ, context=options.context, properties=options.command_config)
    for text in found.notes:
        note(text)
    _RESOLVED.set((options, found))
    return found
