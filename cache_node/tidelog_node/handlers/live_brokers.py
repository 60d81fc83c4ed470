"""Selects the brokers that clients are shown."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker

from tidelog_node.node_context import Standing


class ReachableBrokers:
    """The live brokers that clients of a listener can reach: those that have such a listener."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._live: Mapping[int, Broker] = {}
        self._reachable: dict[str, Mapping[int, Broker]] = {}  # live brokers, by listener

    def __call__(self, image: ClusterImage, listener: str) -> Mapping[int, Broker]:
        """Return them: the same object until the live ones change."""
        live = self._standing.live_brokers(image)
        if live is not self._live:
            self._live, self._reachable = live, {}
        reachable = self._reachable.get(listener)
        if reachable is None:
            found = {n: broker for n, broker in live.items() if broker.endpoint_of(listener)}
            reachable = self._reachable[listener] = live if len(found) == len(live) else found
        return reachable
