"""The input of an assignor as a value, for another thread.

A large group keeps its current targets until the result arrives. The result belongs to the epoch of
the input, and is used although members have joined or left since: that has raised the epoch, so
the next computation corrects it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import Partitions

from tidelog_node.groups.assignment.assignors import ASSIGNORS
from tidelog_node.groups.assignment.subscriber import Subscriber


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComputation:
    """The members and topics of one epoch of a group."""

    epoch: int
    assignor: str
    subscribers: Mapping[str, Subscriber]  # by member id
    partition_counts: Mapping[UUID, int]

    def run(self) -> dict[str, Partitions]:
        """Return each member's target."""
        return ASSIGNORS[self.assignor](self.subscribers, self.partition_counts)


async def in_thread(computation: TargetComputation) -> Mapping[str, Partitions]:
    """Return the result of the computation without blocking the event loop."""
    return await asyncio.to_thread(computation.run)
