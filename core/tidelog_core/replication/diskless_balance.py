"""Spreads the leads of diskless partitions over the live brokers, without a controller.

Every node computes the same moves from the same image and the same live brokers, and makes those
of its own partitions. Each broker is to lead as many as the others, give or take one; brokers that
lead most keep the odd ones, so nothing moves that need not. Nodes that see different brokers for a
moment may move too much. That is put right later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.heirs import spread_rank

# A move costs its leader a chain, so small differences are left alone.
IMBALANCE_MIN = 2
IMBALANCE_PARTS = 4  # of a broker's share, one part more or less


def balancing_moves(
    partitions: Iterable[Partition], brokers: Iterable[int]
) -> list[tuple[Partition, int]]:
    """Return the partitions to move, each with its new leader.

    ``partitions`` are all diskless ones, ``brokers`` those that may lead. Empty while a partition
    is led by none of them: elections come first.
    """
    led: dict[int, list[Partition]] = {broker_id: [] for broker_id in sorted(brokers)}
    for partition in partitions:
        if partition.leader not in led:
            return []
        led[partition.leader].append(partition)
    counts = [len(some) for some in led.values()]
    if not counts:
        return []
    share, odd = divmod(sum(counts), len(led))
    if max(counts) - min(counts) < max(IMBALANCE_MIN, share // IMBALANCE_PARTS):
        return []
    by_count = sorted(led, key=lambda broker_id: (-len(led[broker_id]), broker_id))
    moving: list[Partition] = []
    takers: list[int] = []
    for place, broker_id in enumerate(by_count):
        target = share + (place < odd)
        held = sorted(led[broker_id], key=spread_rank)
        moving += held[target:]
        takers += [broker_id] * (target - len(held))
    return list(zip(moving, _in_turns(takers), strict=True))


def _in_turns(takers: Sequence[int]) -> list[int]:
    """Return the takers so that neighbours differ where they can: leads of a topic are spread."""
    seen: dict[int, int] = {}
    places = []
    for taker in takers:
        seen[taker] = seen.get(taker, 0) + 1
        places.append((seen[taker], taker))
    return [taker for _, taker in sorted(places)]
