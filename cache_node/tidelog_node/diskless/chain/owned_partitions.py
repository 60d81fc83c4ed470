"""The partitions of a chain, and where the bytes of its next objects are.

    entered    their appends are noted
    pending    these, and those that have left while something of them is not committed
    foreign    slices that a gateway has taken for other leaders, in files of its spool

**What may happen between an append and the building of its object.** Only offsets at or above the
high watermark are built, because the high watermark of a diskless partition follows commits; and
those of a partition that becomes diskless, whose log holds their segments until they are committed.

- Segments are rolled: the files stay, and a range may cross them.
- Compaction, eviction and retention replace and remove segments that are wholly below the high
  watermark and not held, and never those.
- The log moves to another directory, or is opened again: the files are looked up again whenever an
  object is built, also for the second time. The worker checks the offsets that it finds.
- The log was cut, because its disk has failed: nobody was told of these records. The object can
  never be built, so the chain ends itself, as if it were sealed.
- A gateway's slices are not of a log: its spool keeps them until they are committed.
- The partition is dropped, or has left and its log was cut: its records are left out of objects
  that cannot have been put, and so are references to gateways' slices behind the cut: an heir could
  not go on over a gap. If others have to be built again, the chain ends itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_core.diskless.chain.noted_ranges import ObjectContent, partition_of
from tidelog_core.diskless.wal.build import ForeignSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.header import HEADER_SIZE

from tidelog_node.diskless.chain.chain_partition import ChainPartition, let_go_of_files
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.wal_messages import FileRange, SliceFiles


class OwnedPartitions:
    """The partitions and foreign slices of one chain. For the node's event loop."""

    def __init__(self, has_uncommitted: Callable[[PartitionName], bool]) -> None:
        """``has_uncommitted`` says whether something of a partition is not committed yet."""
        self.entered: dict[Replica, ChainPartition] = {}
        self.pending: dict[PartitionName, Replica] = {}  # also the entered ones
        self._foreign: dict[int, SliceFiles] = {}  # that are not committed, by number
        self._has_uncommitted = has_uncommitted

    def add(self, partition: ChainPartition) -> None:
        """Let the partition in."""
        self.entered[partition.replica] = partition
        self.pending[partition.name] = partition.replica
        partition.replica.chain = partition

    def remove(self, replica: Replica) -> None:
        """Take the partition out. It may still be pending: see ``forget_if_settled``."""
        self.entered.pop(replica, None)
        replica.chain = None

    def forget_if_settled(self, name: PartitionName) -> None:
        """Forget the replica of a partition that has left, once nothing of it is pending."""
        replica = self.pending.get(name)
        if replica is None or replica in self.entered or self._has_uncommitted(name):
            return
        del self.pending[name]

    def detach(self) -> None:
        """Have no replica note its appends here any more, and let go of all logs' files."""
        for replica in self.entered:
            replica.chain = None
        for replica in self.pending.values():
            let_go_of_files(replica)

    # -- foreign slices --

    def add_foreign(self, number: int, files: SliceFiles) -> None:
        """Take a gateway's slice; the numbers differ."""
        self._foreign[number] = files

    def take_foreign(self, content: ObjectContent) -> list[tuple[int, int]]:
        """Forget the foreign slices of a committed object; return where it has them."""
        found: list[tuple[int, int]] = []
        position = HEADER_SIZE
        for part in content.foreign:
            found.append((part.number, position))
            position += part.size_bytes
            self._foreign.pop(part.number, None)
        return found

    def clear_foreign(self) -> None:
        """Forget all foreign slices."""
        self._foreign.clear()

    # -- the bytes of objects --

    def files_of(self, content: ObjectContent) -> Sequence[SliceFiles]:
        """Return where the logs have the ranges now. Raises their errors.

        Foreign slices come first, so where they will be in the object depends on no log.
        """
        found = [self._foreign[part.number] for part in content.foreign]
        for name, leader_epoch, base_offset, end_offset, _ in content.ranges:
            replica = self.pending[name]
            if replica.is_dropped or self._has_cut(replica, end_offset):
                continue
            ranges = replica.log.file_ranges(base_offset, end_offset)
            files = tuple(FileRange(str(path), start, end) for path, start, end in ranges)
            topic_id, partition = name
            found.append(
                SliceFiles(topic_id, partition, leader_epoch, base_offset, end_offset, files)
            )
        return found

    def references_of(self, content: ObjectContent) -> tuple[ForeignSlice, ...]:
        """Return the references of an object that was not put, as ``files_of`` its slices."""
        return tuple(one for one in content.references if not self._is_cut_off(one))

    def _is_cut_off(self, reference: ForeignSlice) -> bool:
        replica = self.pending.get(partition_of(reference))
        if replica is None or replica.is_dropped:
            return replica is not None
        end_offset = reference.base_offset + reference.row.end_offset
        return replica.opened_log is not None and self._has_cut(replica, end_offset)

    def _has_cut(self, replica: Replica, end_offset: int) -> bool:
        """Whether the partition has left, and its log no longer has the records below this."""
        return replica not in self.entered and replica.log.log_end_offset < end_offset
