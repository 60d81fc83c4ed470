"""Waits until no earlier process of this broker id can act, before the node takes its lease.

Two acting processes of one id would lead the same partitions. The lease excludes that: a process
serves and decides only while it holds the lease, and takes it only once the earlier holder's has
ended or that process is known to be gone. Of two processes that start together one gets the lease,
and the other stops with ``BrokerIdTaken``. The lock of the data directory and the handshake at the
registered address (``require_gone``) refuse most second processes earlier; the lock and the run
mark also save the wait for a process that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    TOPIC_COLLECTION,
    BrokerLease,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.lead_changes import leave_isr
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_core.replication.partition_writer import write_changes

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.membership.lease_keeper import read_lease, wait_until_gone
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.registration import require_gone
from tidelog_node.membership.run_mark import (
    UNSETTLED,
    RunMark,
    current_boot_id,
    may_have_lost_records,
    read_run_mark,
    write_run_mark,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
IN_ISR_OF = (TOPIC_COLLECTION, PARTITION_COLLECTION_PREFIX)


@dataclass(frozen=True, slots=True)
class TakenId:
    """The result of taking over a broker id."""

    lease: BrokerLease | None  # the item to continue from, None if there was none
    may_lack_records: bool  # the logs may lack records that leaders count on


async def take_over_id(
    membership: Membership,
    *,
    store: MetadataStore,
    view: ClusterView,
    dialer: Dialer,
    data_dir: Path,
    was_clean: bool,
    incarnation: UUID,
) -> TakenId:
    """Return the lease to continue from; no process that held it before can act any more.

    The caller holds the lock of the data directory. If records may be lost, this has left every
    ISR, and the caller calls ``leave_again`` after it has registered. Raises ``BrokerIdTaken``.
    """
    broker_id = membership.broker_id
    mark = read_run_mark(data_dir)
    found = await read_lease(store, broker_id)
    is_known_gone = found is not None and (
        found.counter == RELEASED or (mark is not None and mark.incarnation == found.incarnation)
    )
    if not is_known_gone:
        await require_gone(view.image, dialer)
        found = await wait_until_gone(store, membership, found)
    boot_id = current_boot_id()
    may_lack_records = may_have_lost_records(mark, was_clean=was_clean, boot_id=boot_id)
    if may_lack_records:
        await leave_every_isr(broker_id, store=store, view=view)
        boot_id = UNSETTLED
    write_run_mark(data_dir, RunMark(incarnation, boot_id))
    return TakenId(found, may_lack_records=may_lack_records)


async def leave_again(
    broker_id: int, *, store: MetadataStore, view: ClusterView, data_dir: Path, incarnation: UUID
) -> None:
    """Leave every ISR that a leader has added the broker to since ``leave_every_isr``.

    Such a write may have waited for the store, and counts on records fetched before the loss. The
    new registration, which the view shows, excludes further such writes.
    """
    await leave_every_isr(broker_id, store=store, view=view)
    if any(key.collection.startswith(IN_ISR_OF) for key in view.image.unreadable):
        # The unreadable ISRs are unknown. The next start has to leave them.
        logger.warning("ISRs that cannot be read were not left, the next start tries again")
        return
    write_run_mark(data_dir, RunMark(incarnation, current_boot_id()))


async def leave_every_isr(broker_id: int, *, store: MetadataStore, view: ClusterView) -> None:
    """Remove the broker from every ISR that has another member. Durable on return."""
    count = 0
    while True:
        changes = _departures(await view.refresh(), broker_id)
        if not changes:
            break
        outcome = await write_changes(store, changes)
        count += len(outcome.written)
        if outcome.refused:
            raise StoreUnavailable("the metadata store is away")
        if outcome.lost or outcome.unknown:
            await asyncio.sleep(RETRY_SECONDS)
    if count:
        logger.warning("records may be lost, every ISR was left", extra={"count": count})


def _departures(image: ClusterImage, broker_id: int) -> list[PartitionChange]:
    changes = (
        leave_isr(partition, broker_id)
        for partitions in image.partitions_by_topic.values()
        for partition in partitions
    )
    return [change for change in changes if change is not None]
