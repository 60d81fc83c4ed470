"""The server-side assignors and their common interface.

An assignor is a pure function: it assigns every subscribed partition to exactly one member
that subscribes to its topic, and equal inputs get equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import Partitions

from tidelog_node.groups.assignment.range_assignor import assign_ranges
from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.uniform_assignor import assign_uniformly

Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""Takes the members by id and the partition counts of all topics that any subscribes to."""

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
