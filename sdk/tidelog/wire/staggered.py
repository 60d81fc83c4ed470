"""Attempts beside each other, of which the first success counts.

An attempt begins when those before have failed, or have had their time. One that gets no answer at
all then costs that time, and not its whole timeout. Source: RFC 8305, «Happy Eyeballs».
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

AT_ONCE_MAX = 8  # The longest-running attempt is given up for another one.


class AllFailed(Exception):
    """No attempt succeeded. ``errors`` are in the order in which the attempts failed."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(f"{len(errors)} attempts failed")
        self.errors = errors


async def first_success(
    attempts: Iterable[Callable[[], Awaitable[T]]],
    *,
    next_after_s: float,
    discard: Callable[[T], None] = lambda _: None,
    is_decisive: Callable[[Exception], bool] = lambda _: False,
) -> T:
    """Return what the first attempt to succeed returns; the others are cancelled.

    ``discard`` gets what others return at the same time. Once an attempt has failed with an error
    that ``is_decisive``, the others have ``next_after_s`` each. Raises ``AllFailed``.
    """
    loop = asyncio.get_running_loop()
    waiting = list(attempts)[::-1]
    running: dict[asyncio.Future[T], float] = {}  # with the times of their beginnings
    errors: list[Exception] = []
    try:
        while waiting or running:
            if waiting:
                if len(running) == AT_ONCE_MAX:
                    oldest = next(iter(running))
                    del running[oldest]
                    _give_up(oldest, discard)
                running[asyncio.ensure_future(waiting.pop()())] = loop.time()
            timeout_s = None
            if waiting or any(map(is_decisive, errors)):
                timeout_s = max(running.values()) + next_after_s - loop.time()
            done, _ = await asyncio.wait(
                running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in [one for one in running if one in done]:
                error = attempt.exception()
                if error is None:
                    del running[attempt]
                    return attempt.result()
                if not isinstance(error, Exception):
                    raise error
                del running[attempt]
                errors.append(error)
            if not done and not waiting:
                break  # An error was decisive, and nothing comes of the others.
    finally:
        for attempt in running:
            _give_up(attempt, discard)
    raise AllFailed(errors)


def _give_up(attempt: asyncio.Future[T], discard: Callable[[T], None]) -> None:
    # Not awaited: whoever cancels the caller meanwhile would lose what succeeded.
    def settle(ended: asyncio.Future[T]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            discard(ended.result())

    attempt.add_done_callback(settle)
    attempt.cancel()
