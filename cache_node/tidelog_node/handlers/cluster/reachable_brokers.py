"""Selects the brokers that clients of a listener can reach."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker

from tidelog_node.node_context import NodeMembership


class ReachableBrokers:
    """The live brokers that clients of a listener can reach: those that have such a listener."""

    def __init__(self, membership: NodeMembership) -> None:
        self._membership = membership
        self._live: Mapping[int, Broker] = {}
        self._shown: Mapping[int, Broker] = {}
        self._reachable: dict[str, Mapping[int, Broker]] = {}  # of those shown, by listener
        # As of the last call. Nobody is sent to the vanished for diskless partitions, and to the
        # unfit only for those that they lead.
        self.vanished: frozenset[int] = frozenset()
        self.unfit: frozenset[int] = frozenset()

    def __call__(self, image: ClusterImage, listener: str) -> Mapping[int, Broker]:
        """Return the brokers by id.

        It is another object once the live ones, ``vanished`` or ``unfit`` change. So callers can
        tell by the object whether an answer that they keep is still right.
        """
        live, vanished = self._membership.live_brokers(image), self._membership.vanished
        unfit = self._membership.unfit
        if live is not self._live or vanished != self.vanished or unfit != self.unfit:
            self._live, self._reachable = live, {}
            self.vanished, self.unfit = vanished, unfit
            self._shown = dict(live)  # Never an object that was returned with others vanished.
        shown, reachable = self._shown, self._reachable.get(listener)
        if reachable is None:
            found = {n: broker for n, broker in shown.items() if broker.endpoint_of(listener)}
            reachable = self._reachable[listener] = shown if len(found) == len(shown) else found
        return reachable
