"""Calls blocking work that runs event loops of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def outside_loops(call: Callable[[], T]) -> T:
    """Return the call's result, from a thread where no event loop runs.

    A notebook's driver runs one in its thread: the call gets another. Elsewhere it is this thread,
    so that Ctrl-C interrupts the call, and does not wait for its end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, thread_name_prefix="job") as executor:
        return executor.submit(call).result()
