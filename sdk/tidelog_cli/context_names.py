"""Names of contexts for the shell's completion."""

from __future__ import annotations

import os


def complete_context(incomplete: str) -> list[str]:
    """Return the contexts whose names begin so; none if the file cannot be read."""
    from tidelog.errors import InvalidConfig
    from tidelog.settings.context_file import read_contexts

    try:
        contexts = read_contexts(os.environ).contexts
    except InvalidConfig:
        return []
    return [name for name in contexts if name.startswith(incomplete)]
