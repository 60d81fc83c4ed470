"""What must always hold of diskless partitions, checked at the moment it could break.

``GodChain`` knows of each chain which objects have existed without a gap, whoever knows it. Their
slices, in the order in which they were committed, are the history of a partition:

1. an acknowledged record is in the history at its offset; so is all that a leader serves;
2. the history only grows: a committed slice continues it, in the epoch that the item names, in the chain
   that the item names for that epoch, and no epoch begins below or above its end;
3. an idempotent producer's records are in the history once and in order, those of an epoch behind
   those of the epoch before;
4. no leader's last stable offset passes a transaction that is open;
5. an object never changes, and nothing is deleted that is needed, or that may be committed yet;
   records below a log start only while a checkpoint in the bucket has it;
6. a reference in a committed object names a committed object;
7. a new leader knows the end, and the open transactions, of what was committed, and where the
   records are that the tier lacks;
8. in the end the bucket has the history, also by itself, and every producer goes on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.keys import parse_wal_key, wal_key
from tidelog_core.diskless.wal.rows import BatchRow
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

from tests.simulation.checker import Violation
from tests.support.chain_model.checkpoint import Checkpoint, parse_checkpoint
from tests.support.chain_model.heir_replay import ReplayedPartition
from tests.support.chain_model.survey import partition_tails

CLUSTER = "c"


@lru_cache(maxsize=4_096)
def parsed(data: bytes) -> WalFooter:
    """Return an object's footer; everybody in a run reads the same few."""
    return parse_object(data, key="object")


class Entry(NamedTuple):
    """One batch of one record; what tells it from others."""

    producer_id: int
    epoch: int
    sequence: int
    attributes: int
    marker: int


def entry_of(row: BatchRow) -> Entry:
    """Return the entry of a batch."""
    return Entry(row.producer_id, row.producer_epoch, row.base_sequence, row.attributes, row.marker)


class GodChain:
    """Which objects of a chain have existed, and which of them are committed."""

    def __init__(self) -> None:
        self.footers: dict[int, WalFooter] = {}
        self.end = 0
        self.is_sealed = False


class DisklessChecker:
    """Sees everything at once, which nobody in the simulation does."""

    def __init__(self) -> None:
        self.chains: dict[ChainName, GodChain] = {}
        self.history: dict[PartitionName, list[Entry]] = {}
        self.stored: dict[PartitionName, EpochChains] = {}
        self.tier_ends: dict[PartitionName, int] = {}
        self.slices: dict[PartitionName, list[CommittedSlice]] = {}
        self._transactions: dict[PartitionName, list[list[int | None]]] = {}
        self._open: dict[tuple[PartitionName, int], list[int | None]] = {}
        self._sequences: dict[tuple[PartitionName, int], tuple[int, int]] = {}
        self.log_starts: dict[PartitionName, int] = {}
        self._checkpoints: dict[str, Checkpoint] = {}  # that are in the bucket
        self._gone: dict[PartitionName, int] = {}  # deleted up to there
        self._needs: dict[tuple[ChainName, int], dict[PartitionName, int]] = {}
        self.acked_count = 0
        self.reads = 0
        self.seals = self.stray_seals = self.garbage = self.references = self.deleted = 0
        self.checkpoints = self.beyond_tier = self.deleted_untiered = self.epoch_bumps = 0

    def begin(self, partition: PartitionName, chains: EpochChains) -> None:
        """A partition is there from the beginning."""
        self.stored[partition] = chains
        self.history[partition] = []
        self.slices[partition] = []
        self.tier_ends[partition] = self.log_starts[partition] = self._gone[partition] = 0
        self._transactions[partition] = []

    # -- the bucket --

    def on_applied(self, key: str, data: bytes) -> None:
        """An object was written."""
        name = parse_wal_key(key)
        assert name is not None
        if name.is_checkpoint:
            self._on_checkpoint(key, data)
            return
        footer = parsed(data)
        chain = self.chains.setdefault(name.chain, GodChain())
        before = chain.footers.get(name.sequence)
        if name.sequence < chain.end and footer.is_seal:
            self.stray_seals += 1
            return
        self._require(
            before is None or before.header == footer.header,
            f"object {name.sequence} of {name.chain} was {before and before.header.kind.name} and is"
            f" {footer.header.kind.name}, with other bytes",
        )
        chain.footers[name.sequence] = footer
        if chain.is_sealed:
            self.garbage += 1
        while not chain.is_sealed and (found := chain.footers.get(chain.end)):
            if found.is_seal:
                chain.is_sealed = True
                self.seals += 1
            else:
                self._commit(found)
                chain.end += 1

    def _on_checkpoint(self, key: str, data: bytes) -> None:
        self.checkpoints += 1
        self._checkpoints[key] = checkpoint = parse_checkpoint(data, key=key)
        for partition, one in checkpoint.partitions.items():
            what = f"{key} has partition {partition.partition}"
            end = len(self.history[partition])
            self._require(one.end_offset <= end, f"{what} up to {one.end_offset} of {end}")
            log_start = self.log_starts[partition]
            self._require(
                one.log_start_offset <= log_start,
                f"{what} from {one.log_start_offset} on, its log start is {log_start}",
            )
            above = max(one.tiered_end_offset, one.log_start_offset)
            there = self._slices(partition, above, one.end_offset)
            found = [each._replace(created_ms=0) for each in one.slices]
            self._require(found == there, f"{what} in {found} instead of {there}")

    def _slices(self, partition: PartitionName, above: int, end: int) -> list[CommittedSlice]:
        return [
            one._replace(batches=(), created_ms=0)
            for one in self.slices[partition]
            if above < one.end_offset <= end
        ]

    def _commit(self, footer: WalFooter) -> None:
        sequence = footer.header.sequence
        for one in committed_slices(footer):
            history = self.history[one.partition]
            named = self.stored[one.partition]
            what = (
                f"object {sequence} of {footer.header.chain} has {one.partition.partition}"
                f" [{one.base_offset}, {one.end_offset}) of epoch {one.leader_epoch}"
            )
            self._require(
                named[-1].leader_epoch == one.leader_epoch
                and named[-1].chain == footer.header.chain,
                f"{what}, the item names {named[-1]}",
            )
            self._require(
                one.base_offset == len(history), f"{what}, the history ends at {len(history)}"
            )
            place = (one.chain, one.sequence)
            if place != (footer.header.chain, sequence):
                self.references += 1
                gateway = self.chains.get(one.chain)
                self._require(
                    gateway is not None and one.sequence < gateway.end,
                    f"{what} by reference to object {one.sequence} of {one.chain}, which is not"
                    " committed",
                )
            self._needs.setdefault(place, {})[one.partition] = one.end_offset
            self._needs.setdefault((footer.header.chain, sequence), {})[one.partition] = (
                one.end_offset
            )
            self.slices[one.partition].append(one)
            for row in one.batches:
                self._append(one.partition, row)

    def _append(self, partition: PartitionName, row: BatchRow) -> None:
        key = (partition, row.producer_id)
        entry, offset = entry_of(row), row.base_offset
        if entry.marker < 0:
            epoch, last = self._sequences.get(key, (0, -1))
            is_bumped = entry.epoch > epoch
            self.epoch_bumps += is_bumped
            self._require(
                entry.epoch >= epoch and entry.sequence == (0 if is_bumped else last + 1),
                f"producer {row.producer_id} has {entry.sequence} of epoch {entry.epoch} after"
                f" {last} of epoch {epoch} at {offset}",
            )
            self._sequences[key] = entry.epoch, entry.sequence
            if entry.attributes & 0x10 and key not in self._open:
                transaction: list[int | None] = [offset, None]
                self._open[key] = transaction
                self._transactions[partition].append(transaction)
        else:
            if entry.epoch > self._sequences.get(key, (0, -1))[0]:
                self._sequences[key] = entry.epoch, -1
            if key in self._open:
                self._open.pop(key)[1] = offset
        self.history[partition].append(entry)

    def on_deleted(self, key: str) -> None:
        """An object was deleted."""
        name = parse_wal_key(key)
        assert name is not None
        if name.is_checkpoint:
            for partition in self._checkpoints.pop(key).partitions:
                self._require_known(partition, key)
            return
        self.deleted += 1
        chain = self.chains[name.chain]
        if name.sequence >= chain.end:
            self._require(
                chain.is_sealed, f"object {name.sequence} of {name.chain} may be committed yet"
            )
            return
        for partition, end in self._needs.get((name.chain, name.sequence), {}).items():
            self.deleted_untiered += end > self.tier_ends[partition]
            self._gone[partition] = max(end, self._gone[partition])
            self._require_known(partition, key)

    def _require_known(self, partition: PartitionName, key: str) -> None:
        begins_at = self._begins_at(partition)
        self._require(
            self._gone[partition] <= begins_at,
            f"{key} is deleted, partition {partition.partition} is gone up to"
            f" {self._gone[partition]} and begins at {begins_at} for an heir",
        )

    def _begins_at(self, partition: PartitionName) -> int:
        """Return the end of the tier, or the greatest log start of a checkpoint."""
        log_starts = [
            one.partitions[partition].log_start_offset
            for one in self._checkpoints.values()
            if partition in one.partitions
        ]
        return max([self.tier_ends[partition], *log_starts])

    # -- the metadata --

    def on_stored(self, partition: PartitionName, after: EpochChains, log_start: int) -> None:
        """A partition's item was written."""
        before = self.stored[partition]
        known, end = self.log_starts[partition], len(self.history[partition])
        self._require(
            known <= log_start <= end,
            f"the log start of partition {partition.partition} moves from {known} to {log_start}",
        )
        self.log_starts[partition] = log_start
        self.stored[partition] = after
        self._require(after[: len(before)] == before, f"epochs of {partition} have changed")
        if len(after) > len(before):
            end = len(self.history[partition])
            self._require(
                after[-1].first_offset == end,
                f"epoch {after[-1].leader_epoch} of partition {partition.partition} begins at"
                f" {after[-1].first_offset}, committed is {end}",
            )

    # -- leaders --

    def on_lead(self, partition: PartitionName, leader_epoch: int, end: int) -> None:
        """A node begins to lead."""
        named = self.stored[partition][leader_epoch]
        self._require(
            named.leader_epoch == leader_epoch and end == named.first_offset,
            f"partition {partition.partition} is led from {end} on instead of {named}",
        )

    def on_replayed(
        self, partition: PartitionName, tier_end: int, replayed: ReplayedPartition
    ) -> None:
        """An heir knows the partition, and what it must fetch."""
        self.beyond_tier += replayed.log_start_offset > tier_end
        above = max(tier_end, replayed.log_start_offset)
        there = self._slices(partition, above, replayed.end_offset)
        self._require(
            [one._replace(created_ms=0) for one in replayed.slices] == there,
            f"partition {partition.partition}: an heir would fetch {replayed.slices}, from"
            f" {tier_end} to {replayed.end_offset} there is {there}",
        )

    def on_committed(self, partition: PartitionName, start: int, entries: list[Entry]) -> None:
        """A leader takes these entries for committed."""
        there = self.history[partition][start : start + len(entries)]
        self._require(
            there == entries,
            f"partition {partition.partition}: a leader commits {entries} at {start}, the history"
            f" has {there}",
        )

    def on_ack(self, partition: PartitionName, offset: int, entry: Entry) -> None:
        """A leader acknowledges an entry."""
        history = self.history[partition]
        self._require(
            0 <= offset < len(history) and history[offset] == entry,
            f"{entry} of partition {partition.partition} is acknowledged at {offset} and not committed"
            f" there: the history ends at {len(history)}",
        )
        self.acked_count += 1

    def on_stable(self, partition: PartitionName, stable_end: int, high_watermark: int) -> None:
        """A leader serves read_committed up to there."""
        for first, marker in self._transactions[partition]:
            assert first is not None
            self._require(
                first >= stable_end or (marker is not None and marker < high_watermark),
                f"the last stable offset {stable_end} passes the transaction that is open at {first}",
            )
        self.reads += 1

    def on_tiered(self, partition: PartitionName, start: int, entries: list[Entry]) -> None:
        """The tier has got these entries."""
        self.on_committed(partition, start, entries)
        self.tier_ends[partition] = start + len(entries)

    def finish(self, objects: dict[str, bytes]) -> None:
        """Everything is healed and quiet: hold the bucket against the history."""
        for partition, slices in self.slices.items():
            for one in slices:
                if one.end_offset > self._begins_at(partition):
                    key = wal_key(CLUSTER, one.chain, one.sequence)
                    self._require(key in objects, f"{key} is missing and not tiered")
                    data = objects[key][one.position : one.position + one.size_bytes]
                    self._require(crc32c(data) == one.crc32c, f"{key} has other bytes")
        self._restore(objects)

    def _restore(self, objects: dict[str, bytes]) -> None:
        """Find the history by the bucket and the tier alone, without the metadata."""
        chains: dict[ChainName, list[WalFooter]] = {}
        for key, data in objects.items():
            name = parse_wal_key(key)
            assert name is not None
            if not name.is_checkpoint:
                chains.setdefault(name.chain, []).append(parsed(data))
        tails = partition_tails(chains.values())
        for partition, history in self.history.items():
            end = self._begins_at(partition)
            for one in tails.get(partition, []):
                for row in one.batches:
                    if row.base_offset == end:
                        self._require(history[end] == entry_of(row), f"offset {end} is another")
                        end += 1
            self._require(
                end == len(history),
                f"the bucket has partition {partition.partition} up to {end} of {len(history)}",
            )

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise Violation(problem)
