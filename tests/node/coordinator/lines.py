"""How much work something is, on a machine however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lines_of(action: Callable[[], object]) -> int:
    """Return how many lines of Python the action goes through."""
    count = 0

    def trace(_: object, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
