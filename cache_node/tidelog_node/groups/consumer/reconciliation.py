"""One step of a member from its assignment towards its target.

A member first gives up partitions outside its target: it stays in its epoch, in
UNREVOKED_PARTITIONS, until it reports partitions without those. Then it moves to the target's epoch
and gets the partitions that are free. In UNRELEASED_PARTITIONS it waits for those that others have
not given up yet. So a partition never has two members, and no member waits for one that need not
change. Source: KIP-848 and ``CurrentAssignmentBuilder`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tidelog_core.metadata.coordination.consumer_groups import (
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    Partitions,
    TopicIdPartition,
)


def is_reconciled(member: ConsumerMember, target_epoch: int) -> bool:
    """Return whether the member has reached its target."""
    return member.state is MemberState.STABLE and member.epoch == target_epoch


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    seen_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:
    """Return the member one step further, or itself if it has to wait.

    A target may lose partitions within its epoch: those that the member no longer subscribes to.

    ``seen_epoch`` is the epoch in the member's request: its own, or the previous one if it has
    not got the answer with its own. It is remembered until the member moves again.
    ``owned`` has the partitions that the member reports to own, ``None`` without a report.
    """
    moved = _step(member, target_epoch, owned, is_free)
    return member if moved == member else dataclasses.replace(moved, previous_epoch=seen_epoch)


def _step(
    member: ConsumerMember,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:
    if is_reconciled(member, target_epoch) and member.assigned <= member.target:
        return member
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    if is_revoking and _still_has(member.revoking, owned):
        return member
    kept = member.assigned & member.target
    given_up = member.assigned - kept
    if given_up and _still_has(given_up, owned):
        return dataclasses.replace(
            member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=given_up
        )
    missing = member.target - kept
    free = frozenset(partition for partition in missing if is_free(partition))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return dataclasses.replace(
        member, state=state, epoch=target_epoch, assigned=kept | free, revoking=NO_PARTITIONS
    )


def _still_has(partitions: Partitions, owned: Partitions | None) -> bool:
    return owned is None or not partitions.isdisjoint(owned)
