"""Writes decided changes of partitions, many in one transaction.

A transaction fails as a whole, so one partition that another node has written would block all
others. The store names the conflicting items: their changes are left out and the others are
written again.

Every change is committed with the checks that it was decided on. If leases were read between
two decisions, their changes may expect two versions of one lease. Such changes go into different
transactions, of which at most one succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from tidelog_core.metadata.store import COMMIT_WRITES_MAX, Check, ItemKey, MetadataStore
from tidelog_core.replication.change import PartitionChange

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """The outcome of each change."""

    written: list[PartitionChange] = field(default_factory=list)
    lost: list[PartitionChange] = field(default_factory=list)  # another writer was first
    unknown: list[PartitionChange] = field(default_factory=list)  # perhaps written
    refused: list[PartitionChange] = field(default_factory=list)  # the store is away
    moved: set[Check] = field(default_factory=set)  # checks that failed: their items have changed


async def write_changes(store: MetadataStore, changes: Sequence[PartitionChange]) -> Outcome:
    """Commit the changes in order, many in one transaction; at most one change per item.

    The next reading of the cluster shows the written state. Never raises errors of the store.
    """
    outcome = Outcome()
    for some in _transactions(changes):
        # An item's version never goes back: every later change with the same check is lost too.
        able = [change for change in some if outcome.moved.isdisjoint(change.checks)]
        outcome.lost += [change for change in some if not outcome.moved.isdisjoint(change.checks)]
        await _write(store, able, outcome)
        if outcome.refused:
            logger.warning("partitions not written, the metadata store is away")
            break
    done = len(outcome.written) + len(outcome.lost) + len(outcome.unknown) + len(outcome.refused)
    if done < len(changes):
        seen = {
            id(change)
            for some in (outcome.written, outcome.lost, outcome.unknown, outcome.refused)
            for change in some
        }
        outcome.refused += [change for change in changes if id(change) not in seen]
    return outcome


async def _write(store: MetadataStore, changes: list[PartitionChange], outcome: Outcome) -> None:
    """Write the changes of one transaction, without those that conflict."""
    while changes:
        try:
            await store.commit([change.write for change in changes], checks=_checks_of(changes))
        except VersionConflict as error:
            in_the_way = {ItemKey(*key) for key in error.keys}
            lost = [change for change in changes if _items_of(change) & in_the_way]
            outcome.moved.update(
                check for change in lost for check in change.checks if check.id in in_the_way
            )
            # If the store names none of these items, trying again would never end.
            lost = lost or changes
            outcome.lost += lost
            changes = [change for change in changes if change not in lost]
        except OutcomeUnknown:
            outcome.unknown += changes
            return
        except StoreUnavailable:
            outcome.refused += changes
            return
        else:
            outcome.written += changes
            return


def _transactions(changes: Iterable[PartitionChange]) -> Iterable[list[PartitionChange]]:
    """Yield runs of changes that fit one transaction and agree on the items they check."""
    some: list[PartitionChange] = []
    items: set[ItemKey] = set()
    checks: dict[ItemKey, Check] = {}
    for change in changes:
        wanted = items | _items_of(change)
        agrees = all(checks.get(check.id, check) == check for check in change.checks)
        if some and not (agrees and len(wanted) <= COMMIT_WRITES_MAX):
            yield some
            some, wanted, checks = [], _items_of(change), {}
        some.append(change)
        items = wanted
        checks.update((check.id, check) for check in change.checks)
    if some:
        yield some


def _items_of(change: PartitionChange) -> set[ItemKey]:
    return {change.after.item_id, *(check.id for check in change.checks)}


def _checks_of(changes: Iterable[PartitionChange]) -> list[Check]:
    """Return every check of one transaction's changes once; checks of one item agree."""
    return list({check.id: check for change in changes for check in change.checks}.values())
