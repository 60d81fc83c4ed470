"""Finds the partitions that would be offline if the nodes with the highest numbers left.

A partition's item says whether the bucket has all of its records, not its topic's setting: while a
topic is converted some partitions are what the others are to become. One that is about to be
replicated counts as replicated.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog_core.errors import InvalidRequest
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.replication.placement.heirs import wants_diskless

NAMED_MAX = 5  # partitions in a message


async def require_others(metadata_url: str, count: int) -> None:
    """Raise ``InvalidRequest`` if nodes above this number alone have replicated partitions.

    Raises the store's errors too.
    """
    async with opened_metadata_store(metadata_url, may_be_new=True) as store:
        lost = list(only_above(await ClusterView(store).refresh(), count))
    if lost:
        names = ", ".join(lost[:NAMED_MAX]) + (", …" if len(lost) > NAMED_MAX else "")
        raise InvalidRequest(
            f"only nodes that would leave have {names}: reassign with `tidelog topic reassign`,"
            " or give --force and have these partitions offline until the nodes are back"
        )


def only_above(image: ClusterImage, count: int) -> Iterator[str]:
    """Yield the partitions that only nodes above this number have, and not the bucket."""
    for name, topic in image.topics.items():
        stays = wants_diskless(topic)
        for partition in image.partitions(name):
            # What a reassignment adds has the records once it is in sync.
            lacking = set(partition.adding) - set(partition.isr)
            held = [b for b in partition.replicas if b not in lacking]
            is_above = bool(held) and min(held) > count
            if is_above and not (partition.is_diskless and stays):
                yield f"{name}-{partition.partition}"
