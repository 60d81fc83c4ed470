"""The input of an assignor as a value, for another thread.

A large group goes on with the targets that it has until then. The result belongs to the epoch
of the question, and is taken in although members have come and gone since: that has made the
epoch grow, so the next computation makes up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.consumer_groups import Partitions

from tidelog_node.groups.assignment.assignors import ASSIGNORS
from tidelog_node.groups.assignment.subscriber import Subscriber


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComputation:
    """Members and topics of one epoch of a group."""

    epoch: int
    assignor: str
    subscribers: Mapping[str, Subscriber]  # by member id
    partition_counts: Mapping[UUID, int]

    def run(self) -> dict[str, Partitions]:
        """Return what each member is to have."""
        return ASSIGNORS[self.assignor](self.subscribers, self.partition_counts)


async def in_thread(computation: TargetComputation) -> Mapping[str, Partitions]:
    """Return what comes out of the computation, while the loop goes on."""
    return await asyncio.to_thread(computation.run)
