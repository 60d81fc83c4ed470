"""A partition's change between replicas and the object store, as its leader decides it.

Who acknowledges is in the partition's item (``Partition.is_diskless``). The leader writes it, on
condition of the item's version, as it writes the ISR.

*To diskless.* The leader enters its chain at the first offset that the tier lacks, and puts all
records from there on. From then on a record is committed once the ISR and the chain have it. When
the chain has passed the high watermark, all that was ever acknowledged is in the tier or in the
chain, and it stays so: then the item is written, in the same leader epoch. From there on the chain
alone commits. Nothing is refused.

*Back.* Once enough followers are near, the leader takes no appends for a moment. When the chain and
the logs of these followers have everything, the item is written: the next leader epoch, with these
followers as ISR. Then the replicas commit. ``wal`` stays until the tier has what the chains have.

What may interleave, and why it is safe:

- *The write's outcome is unknown.* It may land while the item has its version. Until a later
  version is seen, the leader keeps to what both states ask for: to diskless, ISR and chain commit;
  back, nothing is appended. So either state finds all that was acknowledged.
- *The leader dies or is deposed between two steps.* Before the write the item is as before, and so
  is the election: from the ISR, which has everything, or an heir by the chain, which has
  everything. What was put into the chain before is named by no item, and is garbage. After the
  write the election is the other one.
- *Another node elects a leader at the same time*, by an image of before the write: both writes are
  on condition of the version, and one of them fails.
- *The chain is sealed while the partition is about to enter it*: the leader stops asking for it,
  unless its write may still land, and tries again in another epoch, because an epoch is in one
  chain. If the write has landed, the partition is entered again like one whose chain was deposed;
  the chain has all that was acknowledged.
- *The leader's process is started again*: the next one leads any epoch that begins after its start.
  So a write that begins an epoch with the same leader expects the broker's registration, too.
- *The setting is flipped back at once*: a conversion that has begun is finished, then the other one
  begins. Nodes whose images differ only begin at different
  times: the leader alone converts.
- *A follower believes the state of before.* A leader that is diskless sends no records, one that
  is not sends them; a follower takes what fits the state that it knows, and asks again as a new one
  when its state changes. Once it knows that the partition is diskless it cuts its log where it
  knows no commit. So a diskless leader counts only fetches that say that they know it
  (``ReplicaFetch.is_fed``), and none of before. In one epoch a partition becomes diskless at most
  once, and is replicated again only in another: no such fetch is of an earlier time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import AckedBy, Partition
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import ChangeReason, PartitionChange

COPIES_MIN = 2  # that replicas must have of a record, where there are so many replicas
RETRY_MS = 5_000  # after a return that followers did not keep up with


@dataclass(slots=True)
class Return:
    """The state of a leader that is to give its partition back to the replicas."""

    deadline_ms: float | None = None  # nothing is appended until then; None: appends are taken
    retry_from_ms: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether nothing is appended."""
        return self.deadline_ms is not None

    def give_up(self, now_ms: float) -> None:
        """Take appends again, and try later."""
        self.deadline_ms, self.retry_from_ms = None, now_ms + RETRY_MS


def copies_required(partition: Partition, min_insync_replicas: int) -> int:
    """Return the number of whole logs, the leader's included, that a return needs."""
    return min(len(partition.replicas), max(COPIES_MIN, min_insync_replicas))


def become_diskless(partition: Partition, chain: EpochChain) -> PartitionChange:
    """Return the write after which the chain commits. It has all records that the tier lacks.

    The leader is the first replica from then on: another one there asks it to hand over.
    """
    leader = partition.leader
    replicas = (leader, *(b for b in partition.replicas if b != leader))
    after = dataclasses.replace(partition, acked_by=AckedBy.CHAIN, wal=(chain,), replicas=replicas)
    return PartitionChange(after, ChangeReason.BECAME_DISKLESS)


def begin_next_epoch(partition: Partition, checks: tuple[Check, ...] = ()) -> PartitionChange:
    """Return the write that begins the same leader's next epoch: this one was in a chain."""
    after = dataclasses.replace(partition, leader_epoch=partition.leader_epoch + 1)
    return PartitionChange(after, ChangeReason.CHAIN_LOST, checks)


def become_replicated(
    partition: Partition, isr: Sequence[int], checks: tuple[Check, ...]
) -> PartitionChange:
    """Return the write from which on these replicas commit. Their logs have everything."""
    after = dataclasses.replace(
        partition,
        acked_by=AckedBy.REPLICAS,
        leader_epoch=partition.leader_epoch + 1,
        isr=tuple(isr),
    )
    return PartitionChange(after, ChangeReason.BECAME_REPLICATED, checks)


def forget_chains(partition: Partition) -> PartitionChange:
    """Return the write that forgets the chains of a replicated partition: the tier has all."""
    after = dataclasses.replace(partition, acked_by=None, wal=())
    return PartitionChange(after, ChangeReason.CHAINS_TIERED)
