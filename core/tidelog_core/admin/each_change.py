"""Changes of one request that are independent of each other: ACLs, roles, quotas, SCRAM users."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from tidelog_core.admin.batch_changes import change_each
from tidelog_core.admin.commit import commit_together
from tidelog_core.errors import StoreUnavailable, TidelogError
from tidelog_core.metadata.cluster_view import ClusterView
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.store import MetadataStore, Write

K = TypeVar("K")
V = TypeVar("V")


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
