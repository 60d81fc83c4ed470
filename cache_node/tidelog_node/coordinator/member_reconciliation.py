"""One step of a member from what it has to what it is to have.

A member first gives up what it is not to have any more: it stays in its epoch, in
UNREVOKED_PARTITIONS, until it reports partitions without those. Then it goes to the
target's epoch and gets what is free. What others have not given up yet it waits for in
UNRELEASED_PARTITIONS. So a partition is never with two members, and nobody waits for
whoever need not change. Source: KIP-848 and ``CurrentAssignmentBuilder`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tidelog_core.metadata.consumer_groups import (
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    Partitions,
    TopicIdPartition,
)


def is_reconciled(member: ConsumerMember, target_epoch: int) -> bool:
    """Return whether nothing is left to do for the member."""
    return member.state is MemberState.STABLE and member.epoch == target_epoch


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:
    """Return the member one step further, or itself where it has to wait.

    A target may lose partitions within its epoch: those that the member does not want any more.

    ``owned`` is what the member says that it has, ``None`` where it does not say.
    """
    if is_reconciled(member, target_epoch) and member.assigned <= member.target:
        return member
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    if is_revoking and _still_has(member.revoking, owned):
        return member
    kept = member.assigned & member.target
    given_up = member.assigned - kept
    if given_up and _still_has(given_up, owned):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, given_up)
    missing = member.target - kept
    free = frozenset(partition for partition in missing if is_free(partition))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return _moved(member, state, target_epoch, kept | free, NO_PARTITIONS)


def _still_has(partitions: Partitions, owned: Partitions | None) -> bool:
    return owned is None or not partitions.isdisjoint(owned)


def _moved(
    member: ConsumerMember,
    state: MemberState,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions,
) -> ConsumerMember:
    if (member.state, member.epoch, member.assigned, member.revoking) == (
        state,
        epoch,
        assigned,
        revoking,
    ):
        return member
    return dataclasses.replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )
