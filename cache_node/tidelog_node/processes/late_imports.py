"""Imports modules that a node needs after its start, and only at times.

While the thread imports, the loop serves others, up to 5 ms later than otherwise: the two share the
interpreter's lock. If the loop itself imports one of these modules at that moment, it waits for the
rest of the import, some 10 ms. The first requests of several clients wait for one import.

One thread imports everything that comes after the start. Two would meet in modules that import each
other, and one that also waits for the disk may be busy for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_importing = ThreadPoolExecutor(1, "tidelog-imports")  # has no thread before it is used


async def imported(load: Callable[[], T]) -> T:
    """Call ``load``, which imports something, on the thread for imports; return its result."""
    return await asyncio.get_running_loop().run_in_executor(_importing, load)
