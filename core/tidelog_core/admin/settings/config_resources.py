"""The kinds of resources that settings belong to. Source: ``ConfigResource.Type`` of Kafka."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The numbers are the wire's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8  # no node has settings of it
    CLIENT_METRICS = 16
    GROUP = 32
