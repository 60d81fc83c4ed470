"""Deletes unneeded objects of a sealed chain, for processes that are not nodes.

1. Find the seal. The objects below it are final; without a seal, nothing is touched.
2. Read the footers: the end offset of each partition in each object.
3. Read the end of each of these partitions' tiers once. Ends never go back, so a stale one only
   keeps more. A gateway's slices are needed while a reference in any chain names the object.
4. Delete objects whose records are all tiered, and those above the seal. The seal stays.

A damaged object stays and is named: nobody knows its records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import ObjectState, walk_chain
from tidelog_core.diskless.collection.collection import (
    DELETE_COUNT_MAX,
    UnneededEnds,
    collectable_of_sealed,
    needs_of,
)
from tidelog_core.diskless.collection.referenced_objects import Referenced
from tidelog_core.diskless.takeover.chain_seal import find_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.records import (
    Partition,
    SegmentState,
    deleted_topic_key,
    partition_key,
    segment_key_from,
)
from tidelog_core.metadata.store import KeyRange, MetadataStore
from tidelog_core.model import INT64_MAX
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX, read_tiered_end
from tidelog_core.tier.lifecycle import read_segments

ALL_NEEDED = -1  # an end below every record: all of a partition is needed
ReadUnneeded = Callable[[Collection[PartitionName]], Awaitable[UnneededEnds]]
"""Reads up to which offset partitions need no chain. Called once per partition, after the listing.
"""


@dataclass(slots=True)
class CollectedChain:
    """The result of a collection."""

    sealed_at: int | None  # None: it is not sealed, so nothing was done
    deleted: list[int] = field(default_factory=list)  # sequences
    deleted_bytes: int = 0
    kept: list[int] = field(default_factory=list)  # data objects that are needed, or damaged
    problems: list[tuple[str, str]] = field(default_factory=list)  # key and sentence


async def collect_sealed(
    chains: ChainStore,
    cluster_id: str,
    chain: ChainName,
    read_unneeded: ReadUnneeded,
    *,
    is_dry_run: bool = False,
    on_read: Callable[[int], None] = lambda _: None,
    read_referenced: Callable[[], Awaitable[Referenced]] | None = None,
) -> CollectedChain:
    """Delete the chain's unneeded objects, if it is sealed. Idempotent.

    ``read_referenced`` is called after the listing, once, if the chain is a gateway's. Give it only
    if no new reference to the chain can come. Without it objects with a gateway's slices are kept.
    ``on_read`` gets the number of footers read, and may raise. Raises ``ChainNotSealed``,
    ``CorruptObject`` if the chain's end cannot be told, and the stores' errors.
    """
    end = await find_seal(chains, chain)
    result = CollectedChain(end)
    if end is None:
        return result
    listed = await chains.list(chain)
    needs_reader = _NeedsReader(chain, read_unneeded, read_referenced)
    collectable: list[ListedObject] = []
    # Each object is judged when it is read: the needs of an hour's objects do not fit into memory.
    async for one in walk_chain(chains, chain, listed, on_read=on_read):
        sequence = one.listed.sequence
        needs: dict[int, dict[PartitionName, int]] = {}
        if one.problem:
            result.problems.append((wal_key(cluster_id, chain, sequence), one.problem))
        elif one.state is ObjectState.COMMITTED and one.footer is not None and sequence < end:
            needs[sequence] = await needs_reader.needs_of_object(sequence, one.footer)
        if collectable_of_sealed(end, (sequence,), needs, needs_reader.unneeded):
            collectable.append(one.listed)
        elif one.problem or needs:
            result.kept.append(sequence)
    for some in batched(collectable, DELETE_COUNT_MAX):
        if not is_dry_run:
            await chains.delete(chain, [one.sequence for one in some])
        result.deleted += [one.sequence for one in some]
        result.deleted_bytes += sum(one.size_bytes for one in some)
    return result


class _NeedsReader:
    """Reads up to which offset partitions need the objects of a chain, each partition once."""

    def __init__(
        self,
        chain: ChainName,
        read_unneeded: ReadUnneeded,
        read_referenced: Callable[[], Awaitable[Referenced]] | None,
    ) -> None:
        self._chain = chain
        self._read_unneeded = read_unneeded
        self._read_referenced = read_referenced
        self._referenced: Referenced | None = None
        self._ends: dict[PartitionName, int] = {}
        self.unneeded = UnneededEnds(self._ends)  # of the partitions in the objects so far

    async def needs_of_object(self, sequence: int, footer: WalFooter) -> dict[PartitionName, int]:
        """Return up to where each partition needs the object. Raises the stores' errors."""
        is_referenced = True
        if self._read_referenced is not None and _has_foreign(footer):
            if self._referenced is None:
                self._referenced = await self._read_referenced()
            is_referenced = (self._chain, sequence) in self._referenced
        needs = needs_of(footer, is_referenced=is_referenced)
        if new := needs.keys() - self._ends.keys():
            found = await self._read_unneeded(new)
            self._ends.update((name, found.of(name)) for name in new)
        return needs


def _has_foreign(footer: WalFooter) -> bool:
    return any(row.is_foreign for row in footer.slices)


async def unneeded_end(store: MetadataStore, partition: Partition) -> int:
    """Return the offset below which no heir and no reader needs chains.

    It is the end of the tier, or where the first chain in the item begins that has more than
    deleted records. A log start counts only where nothing is tiered: there an heir begins at it.
    """
    start, wal = partition.log_start_offset, partition.readable_wal
    first = wal[0].first_offset if wal else 0
    where = (store, partition.topic_id, partition.partition)
    # Not from the log start on: a partition may have a hundred thousand segments.
    end = await read_tiered_end(*where, max(start, first))
    if end <= start:
        keys = KeyRange(
            end=segment_key_from(start + 1), limit=OVERLAPPING_COUNT_MAX, is_descending=True
        )
        before = await read_segments(*where, keys=keys)
        ends = [one.end_offset for one in before if one.state is SegmentState.COPY_FINISHED]
        end = min(max(ends, default=start), start)
    return max(end, first)


async def read_unneeded_ends(
    store: MetadataStore,
    names: Collection[PartitionName],
    *,
    deleted: Collection[PartitionName] = (),
    unknown: Collection[PartitionName] = (),
    keeps_restored: bool = False,
) -> UnneededEnds:
    """Return the ends of these partitions. All records of a partition without an item are needed.

    No records are needed of ``deleted`` ones, of topics with a tombstone, and of ``unknown`` ones
    that still have no item: their topic may have been created since the topics were read. With
    ``keeps_restored``, all records of a partition are needed while its log starts where a
    restoration set it, because earlier records may still exist. Raises the store's errors.
    """
    keys = {partition_key(name.topic_id, name.partition): name for name in names}
    items = await store.get_many(keys)
    ends = dict.fromkeys((*unknown, *deleted), INT64_MAX)
    for key, item in items.items():
        name = keys[key]
        if name in deleted:
            continue
        partition = Partition.from_item(item)
        is_restored = 0 < partition.log_start_offset <= partition.restored_log_start
        is_kept = keeps_restored and is_restored
        ends[name] = ALL_NEEDED if is_kept else await unneeded_end(store, partition)
    left = {name for key, name in keys.items() if key not in items} - ends.keys()
    tombs = {deleted_topic_key(name.topic_id): name.topic_id for name in left}
    buried = {tombs[key] for key in (await store.get_many(tombs) if tombs else ())}
    ends |= dict.fromkeys((name for name in left if name.topic_id in buried), INT64_MAX)
    return UnneededEnds(ends)
