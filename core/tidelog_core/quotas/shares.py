"""Divides one quota of a cluster between its nodes."""

from __future__ import annotations

from collections.abc import Mapping

FLOOR = 0.1  # of the equal part: a node whose demand is unknown or small has as much


def divide(quota: float, demands: Mapping[int, float], *, node_count: int) -> dict[int, float]:
    """Return each node's part of a quota, by the nodes' demands.

    No node gets less than the others unless it demands less. The rest is lent to all nodes equally,
    for demands that come before the next division. The sum of the parts is ``quota``, and more only
    by the floors: at most ``quota * (1 + FLOOR)``. ``node_count`` is the number of all nodes.
    """
    if not demands:
        return {}
    left = quota
    parts: dict[int, float] = {}
    ascending = sorted(demands.items(), key=lambda entry: entry[1])
    for place, (node, demand) in enumerate(ascending):
        part = min(demand, left / (len(ascending) - place))
        parts[node] = part
        left -= part
    floor = FLOOR * quota / node_count
    return {node: max(part + left / len(parts), floor) for node, part in parts.items()}
