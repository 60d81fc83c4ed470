"""Applies many changes of one request independently: decide, commit, decide conflicts again."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from tidelog_core.errors import TidelogError, VersionConflict
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.turns import Turn

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

ATTEMPTS_MAX = 10
RETRY_DELAY_MAX = 0.05  # seconds


class Commit(Protocol[K, T_contra]):
    """Commits decisions, each wholly or not at all."""

    async def __call__(
        self, decided: Mapping[K, T_contra], /, *, is_late: Callable[[], bool]
    ) -> dict[K, TidelogError]:
        """Return the failed changes with their errors. A commit that would begin late fails too."""


async def change_each(
    wanted: Mapping[K, V],
    decide: Callable[[ClusterImage], Callable[[V], T]],
    commit: Commit[K, T],
    *,
    newest: Callable[[], Awaitable[ClusterImage]],
    validate_only: bool = False,
    seconds_max: float | None = None,
    is_large: Callable[[V], bool] = lambda _: False,
) -> dict[K, T | TidelogError]:
    """Return for each change its committed decision, or its error.

    Changes that conflict are decided again on the newest image. Large decisions are made on
    another thread, one at a time.
    """
    loop = asyncio.get_running_loop()
    late_from = math.inf if seconds_max is None else loop.time() + seconds_max
    outcomes: dict[K, T | TidelogError] = {}
    left = dict(wanted)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            image = await newest()
        except TidelogError as error:
            return outcomes | dict.fromkeys(left, error)
        decided, refused = await _decide_each(left, decide(image), is_large)
        outcomes.update(decided)
        outcomes.update(refused)
        if validate_only:
            break
        failed = await commit(decided, is_late=lambda: loop.time() >= late_from)
        outcomes.update(failed)
        left = {key: left[key] for key in failed if isinstance(failed[key], VersionConflict)}
        if not left:
            break
        if attempt < ATTEMPTS_MAX:
            await asyncio.sleep(random.uniform(0, RETRY_DELAY_MAX))
    return outcomes


async def _decide_each(
    wanted: Mapping[K, V], decide: Callable[[V], T], is_large: Callable[[V], bool]
) -> tuple[dict[K, T], dict[K, TidelogError]]:
    """Return the decisions and the refusals. Other tasks run in between."""
    decided: dict[K, T] = {}
    refused: dict[K, TidelogError] = {}
    turn = Turn()
    for key, one in wanted.items():
        await turn.step()
        try:
            decided[key] = await asyncio.to_thread(decide, one) if is_large(one) else decide(one)
        except TidelogError as error:
            # Its traceback holds this frame, and with it all requested changes.
            refused[key] = error.with_traceback(None)
    return decided, refused
