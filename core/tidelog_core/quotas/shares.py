"""Divides one quota of a cluster between its nodes."""

from __future__ import annotations

from collections.abc import Mapping

FLOOR = 0.1  # of the equal part: a node whose demand is unknown or small has as much


def divide(quota: float, demands: Mapping[int, float], *, node_count: int) -> dict[int, float]:
    """Return how much of a quota each node may use, by what it would.

    Nobody gets less than the others unless it wants less. What nobody wants is lent to all
    equally, for whoever wants it before the next division. The parts are ``quota`` together, and
    more only by the floors: at most ``quota * (1 + FLOOR)``. ``node_count`` is the number of all
    nodes.
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
