"""Commits of offsets to a group in memory, by members, by producers and by transactions.

Each asks the group's state machine whether the caller may commit, and then writes to its storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from kio.schema.errors import ErrorCode
from tidelog_core.errors import OutcomeUnknown, VersionConflict
from tidelog_core.metadata.coordination.groups import OffsetsByTopic
from tidelog_core.metadata.store import Check, Write

from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.loaded_group import LoadedGroup
from tidelog_node.groups import any_group
from tidelog_node.groups.classic_messages import GroupCaller


async def commit_offsets(
    loaded: LoadedGroup, caller: GroupCaller, *, offsets: OffsetsByTopic, knows_epochs: bool
) -> ErrorCode:
    """Store the offsets if the caller may commit. Durable on return of ``none``."""
    if offsets:
        await loaded.claim()
    await loaded.ready()
    error = any_group.validate_commit(
        loaded.group, caller, knows_epochs=knows_epochs, now_ms=loaded.now_ms()
    )
    try:
        if error is ErrorCode.none and offsets:
            loaded.has_own_expiries = loaded.has_own_expiries or _have_own_expiries(offsets)
            await loaded.storage.commit_offsets(offsets)
    except (VersionConflict, OutcomeUnknown) as problem:
        loaded.unload(error_code(problem))
        raise
    finally:
        loaded.note_change()  # a group created for this commit may have no reason to stay
    return error


async def commit_transactional(
    loaded: LoadedGroup,
    caller: GroupCaller,
    *,
    offsets: OffsetsByTopic,
    write: Callable[[OffsetsByTopic], Write],
    checks: Sequence[Check],
) -> ErrorCode:
    """Make the ``write`` of a transaction's offsets if the caller may commit.

    Durable on return of ``none``. Raises ``VersionConflict`` if the group or an item in
    ``checks`` has changed.
    """

    async def commit() -> ErrorCode:
        error = any_group.validate_transactional_commit(loaded.group, caller)
        if error is ErrorCode.none:
            await loaded.storage.claim()
            created_ms = loaded.wall_clock_ms
            timed = await loaded.storage.after_committed(offsets)
            await loaded.storage.write_checked([write(timed)], checks, created_ms=created_ms)
        return error

    return await loaded.exclusively(commit)


async def commit_pending(
    loaded: LoadedGroup,
    offsets: OffsetsByTopic,
    *,
    also: Write,
    checks: Sequence[Check],
) -> None:
    """Store the offsets of a committed transaction. Durable on return.

    ``also`` ends their waiting. Raises ``VersionConflict`` if the group or an item in ``checks``
    has changed.
    """
    await loaded.exclusively(
        lambda: loaded.storage.commit_pending(offsets, also=also, checks=checks)
    )


def _have_own_expiries(offsets: OffsetsByTopic) -> bool:
    """Whether the offsets of one request have a retention of their own: all or none have."""
    first = next(iter(offsets.values()), {})
    return any(offset.expires_ms is not None for offset in islice(first.values(), 1))
