"""Checks of the settings of the ledger of costs."""

from __future__ import annotations

import re

_MACHINE_TYPE = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")


def parse_machine_type(text: str) -> str:
    """Return the instance type. Raises ``ValueError`` unless it looks like one."""
    if not _MACHINE_TYPE.fullmatch(text):
        raise ValueError("must be an instance type such as i4i.large")
    return text
