"""Which brokers clients are told of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker

LiveBrokers = Callable[[ClusterImage], Mapping[int, Broker]]
"""Returns those that can serve: the same object until that changes."""


def registered_brokers(image: ClusterImage) -> Mapping[int, Broker]:
    """Return every registered broker: for whoever knows of no leases."""
    return image.brokers


class ReachableBrokers:
    """The live brokers that clients of a listener can reach: those that have such a listener."""

    def __init__(self, live_brokers: LiveBrokers) -> None:
        self._live_brokers = live_brokers
        self._live: Mapping[int, Broker] = {}
        self._reachable: dict[str, Mapping[int, Broker]] = {}  # of the live ones, by listener

    def __call__(self, image: ClusterImage, listener: str) -> Mapping[int, Broker]:
        """Return them: the same object until the live ones change."""
        live = self._live_brokers(image)
        if live is not self._live:
            self._live, self._reachable = live, {}
        reachable = self._reachable.get(listener)
        if reachable is None:
            found = {n: broker for n, broker in live.items() if broker.endpoint_of(listener)}
            reachable = self._reachable[listener] = live if len(found) == len(live) else found
        return reachable
