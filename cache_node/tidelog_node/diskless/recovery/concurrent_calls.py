"""Awaits several calls at once, because producers wait while an heir waits for a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def for_each(
    items: Iterable[T], call: Callable[[T], Awaitable[R]], *, at_once_max: int
) -> list[R]:
    """Return the answers in the order of the items. Raises the first error, and ends the rest.

    A call begins as soon as another one has ended, so a slow one delays no other.
    """
    answers: dict[int, R] = {}
    left = enumerate(items)
    tasks = [asyncio.ensure_future(_work(left, call, answers)) for _ in range(at_once_max)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in sorted(answers)]


async def _work(
    left: Iterator[tuple[int, T]], call: Callable[[T], Awaitable[R]], answers: dict[int, R]
) -> None:
    for number, item in left:
        answers[number] = await call(item)
