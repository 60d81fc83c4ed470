"""Hands partitions over: through their leader states, or by a write where there is none.

A partition with records is handed over by its leader state, which stops appending, waits for the
successor and writes the change. A reserved partition, and one that is not led yet, has no leader
state: it is handed over by a write from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import move_lead
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.replication.placement.reassignment import ask_to_lead

from tidelog_node.node_context import NodeContext

HAND_OVER_AGAIN_MS = 5_000  # before a hand-over without effect is repeated


class LeaderStates(Protocol):
    """The leader states of the partitions with records; ``ReplicaManager``."""

    def has_leader_state(self, topic_id: UUID, partition: int) -> bool:
        """Whether there is one of this partition."""

    def begin_hand_over(
        self, topic_id: UUID, partition: int, successor: int, *, is_leaving: bool
    ) -> bool:
        """Hand the partition over as soon as the successor, or its chain, has every record.

        Returns False if it has no leader state.
        """


def ask_to_hand_over(
    states: LeaderStates, partition: Partition, successor: int
) -> list[PartitionChange]:
    """Return the write by which the leader state hands a diskless partition over.

    A partition without leader state is not led yet, so nothing has to be waited for.
    """
    if not states.has_leader_state(partition.topic_id, partition.partition):
        return [move_lead(partition, successor, ChangeReason.HAND_OVER)]
    change = ask_to_lead(partition, successor)
    return [] if change is None else [change]


def hand_over_now(
    states: LeaderStates, partition: Partition, successor: int
) -> list[PartitionChange]:
    """Have the leader state hand a diskless partition over at once, or return the write."""
    if states.begin_hand_over(partition.topic_id, partition.partition, successor, is_leaving=True):
        return []
    return [move_lead(partition, successor, ChangeReason.HAND_OVER)]


async def write_and_see(node: NodeContext, changes: Sequence[PartitionChange]) -> None:
    """Write the changes, those that are not lost, and have the view show them if it can."""
    if not changes:
        return
    await write_changes(node.store, changes)
    with contextlib.suppress(StoreUnavailable):  # The next round uses the image known by then.
        await node.view.refresh()
