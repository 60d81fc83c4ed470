"""Changes many partitions for an administrator, each decided independently."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from tidelog_core.errors import (
    CorruptItem,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.partition_writer import Outcome, write_changes
from tidelog_core.turns import Turn

ATTEMPTS_MAX = 10
RETRY_SECONDS_MAX = 0.05

Decide = Callable[[Partition], PartitionChange | None]
"""Returns the change to write, ``None`` for no change; raises ``TidelogError``."""


async def change_partitions(
    store: MetadataStore, view: ClusterView, wanted: Mapping[TopicPartition, Decide]
) -> dict[TopicPartition, TidelogError | None]:
    """Decide on the newest image and write; return the result of each partition.

    A partition whose write conflicts is decided again.
    """
    results: dict[TopicPartition, TidelogError | None] = {}
    left = wanted
    turn = Turn()
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(random.uniform(0, RETRY_SECONDS_MAX))
        try:
            image = await view.refresh()
        except StoreUnavailable as error:
            return results | dict.fromkeys(left, error)
        changes: dict[TopicPartition, PartitionChange] = {}
        for name, decide in left.items():
            await turn.step()
            try:
                change = _decide(image, name, decide)
            except TidelogError as error:
                # Its traceback holds this frame, and so all of the results.
                results[name] = error.with_traceback(None)
                continue
            results[name] = None
            if change is not None:
                changes[name] = change
        problems = _problems(await write_changes(store, list(changes.values())))
        for name, change in changes.items():
            results[name] = problems.get(id(change))
        left = {name: left[name] for name in changes if _is_lost(results[name])}
        if not left:
            break
    view.nudge()
    return results


def _decide(image: ClusterImage, name: TopicPartition, decide: Decide) -> PartitionChange | None:
    partition = image.partition(name)
    if partition is None:
        raise UnknownTopicOrPartition(f"Unable to find partition {name}.")
    if not is_readable(partition):
        key = partition.item_id
        raise CorruptItem((key.collection, key.key), image.unreadable[key])
    return decide(partition)


def _problems(outcome: Outcome) -> dict[int, TidelogError]:
    """Return why changes were not written, by the id of the change."""
    problems: dict[int, TidelogError] = {}
    for change in outcome.refused:
        problems[id(change)] = StoreUnavailable("the metadata store is away")
    for change in outcome.unknown:
        problems[id(change)] = OutcomeUnknown("the metadata store did not answer in time")
    for change in outcome.lost:
        key = change.after.item_id
        problems[id(change)] = VersionConflict([(key.collection, key.key)])
    return problems


def _is_lost(error: TidelogError | None) -> bool:
    return isinstance(error, VersionConflict)
