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
