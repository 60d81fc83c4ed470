"""Applies many changes of one request independently: decide, commit, decide conflicts again.

Changes that share a transaction fail or succeed independently: a conflicting one is taken out, and
the others are written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tidelog_core.errors import (
    CommitTooLarge,
    ItemTooLarge,
    RequestTimedOut,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.store import COMMIT_WRITES_MAX, MetadataStore, Write
from tidelog_core.turns import Turn

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

ATTEMPTS_MAX = 10
RETRY_DELAY_MAX = 0.05  # seconds
TOO_LATE = "The time for the request was over before this change was begun."


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


async def commit_each(
    store: MetadataStore,
    view: ClusterView,
    wanted: Mapping[K, V],
    decide: Callable[[ClusterImage, V], list[Write]],
    *,
    validate_only: bool = False,
) -> dict[K, TidelogError | None]:
    """Commit what ``decide`` returns for each change; return its error, ``None`` if it is done.

    A change is committed wholly or not at all. Durable on return, and the view's image shows it.
    """
    if not wanted:
        return {}
    outcomes = await change_each(
        wanted,
        lambda image: partial(decide, image),
        partial(commit_together, store, writes_of=lambda writes: writes, write_count=len),
        newest=view.refresh,
        validate_only=validate_only,
    )
    # The committed changes are done, even if the store is unavailable now.
    with contextlib.suppress(StoreUnavailable):
        await view.refresh()
    return {
        key: outcome if isinstance(outcome, TidelogError) else None
        for key, outcome in outcomes.items()
    }


async def commit_together(
    store: MetadataStore,
    decided: Mapping[K, V],
    writes_of: Callable[[V], Sequence[Write]],
    *,
    write_count: Callable[[V], int],
    is_late: Callable[[], bool],
) -> dict[K, TidelogError]:
    """Commit each key's writes, all of them or none, those of many keys in one transaction.

    Writes are computed when their transaction begins: for thousands of topics that takes long.
    """
    failed: dict[K, TidelogError] = {}
    groups = _pack(decided, write_count)
    again: deque[list[K]] = deque()  # parts of groups that failed as a whole
    is_begun = False
    while keys := again.popleft() if again else next(groups, None):
        if is_begun and is_late():
            failed.update((key, RequestTimedOut(TOO_LATE)) for key in keys)
            continue
        is_begun = True
        writes = {key: writes_of(decided[key]) for key in keys}
        try:
            await store.commit([write for key in keys for write in writes[key]])
        except VersionConflict as conflict:
            lost = [key for key in keys if _touches(writes[key], conflict)] or keys
            failed.update((key, conflict) for key in lost)
            if len(lost) < len(keys):
                again.appendleft([key for key in keys if key not in failed])
        except (CommitTooLarge, ItemTooLarge) as error:
            if len(keys) == 1:
                failed[keys[0]] = error
            else:
                middle = len(keys) // 2
                again.extendleft((keys[middle:], keys[:middle]))
        except StoreUnavailable as error:
            # The other writes would fail as well, and each attempt takes time.
            failed.update((key, error) for some in (keys, *again, *groups) for key in some)
            break
        except TidelogError as error:
            failed.update((key, error) for key in keys)
    return failed


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


def _pack(decided: Mapping[K, V], write_count: Callable[[V], int]) -> Iterator[list[K]]:
    """Yield the keys in order, in runs whose writes fit into one transaction."""
    keys: list[K] = []
    total = 0
    for key, one in decided.items():
        count = write_count(one)
        if total + count > COMMIT_WRITES_MAX:
            yield keys
            keys, total = [], 0
        keys.append(key)
        total += count
    if keys:
        yield keys


def _touches(writes: Iterable[Write], conflict: VersionConflict) -> bool:
    return any((write.id.collection, write.id.key) in conflict.keys for write in writes)
