"""Deletes what nobody needs of a sealed chain, for processes that are no node.

1. Find the seal. Whatever is below is fixed for good; without one, nothing is touched.
2. Read the footers: which offsets of which partitions each object ends at.
3. Read where those partitions' tiers end. Ends never go back, so a stale one only keeps more.
4. Delete objects of which the tier has everything, and those above the seal. The seal stays.

A damaged object stays and is named: nobody knows what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from tidelog_core.config import INT64_MAX
from tidelog_core.diskless.chain_sealing import find_seal
from tidelog_core.diskless.chain_store import ChainStore
from tidelog_core.diskless.chain_walk import Place, walk_chain
from tidelog_core.diskless.collection import UnneededEnds, collectable_of_sealed, needs_of
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.keys import wal_key
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.records import Partition, SegmentState, partition_key, segment_key_from
from tidelog_core.metadata.store import KeyRange, MetadataStore
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX, read_tiered_end
from tidelog_core.tier.lifecycle import read_segments

ReadUnneeded = Callable[[Collection[PartitionName]], Awaitable[UnneededEnds]]
"""Reads up to where these partitions are not needed in chains; called after the listing."""


@dataclass(slots=True)
class CollectedChain:
    """What was done to a chain."""

    sealed_at: int | None  # None: it is not sealed, so nothing was done
    deleted: list[int] = field(default_factory=list)  # sequences
    deleted_bytes: int = 0
    kept: list[int] = field(default_factory=list)  # data objects that are needed, or damaged
    needed_by: set[PartitionName] = field(default_factory=set)  # by the kept ones
    problems: list[tuple[str, str]] = field(default_factory=list)  # key and sentence


async def collect_sealed(
    chains: ChainStore,
    cluster_id: str,
    chain: ChainName,
    read_unneeded: ReadUnneeded,
    *,
    is_dry_run: bool = False,
    on_read: Callable[[int], None] = lambda _: None,
) -> CollectedChain:
    """Delete what nobody needs of the chain, if it is sealed. Idempotent.

    ``on_read`` gets the number of footers read, and may raise. Raises ``ChainNotSealed``,
    ``CorruptObject`` if the chain's end cannot be told, and the stores' errors.
    """
    end = await find_seal(chains, chain)
    result = CollectedChain(end)
    if end is None:
        return result
    listed = await chains.list(chain)
    ends_of: dict[int, dict[PartitionName, int]] = {}
    async for one in walk_chain(chains, chain, listed, on_read=on_read):
        sequence = one.listed.sequence
        if one.problem:
            result.problems.append((wal_key(cluster_id, chain, sequence), one.problem))
        elif one.place is Place.COMMITTED and one.footer is not None and sequence < end:
            ends_of[sequence] = needs_of(one.footer)
    names = {name for ends in ends_of.values() for name in ends}
    unneeded = await read_unneeded(names)
    left = {one.sequence: one.size_bytes for one in listed}
    while some := collectable_of_sealed(end, left, ends_of, unneeded):
        if not is_dry_run:
            await chains.delete(chain, some)
        result.deleted += some
        result.deleted_bytes += sum(left.pop(sequence) for sequence in some)
    broken = {key for key, _ in result.problems}
    for sequence in left:
        if sequence in ends_of:
            result.kept.append(sequence)
            result.needed_by.update(
                name for name, ends in ends_of[sequence].items() if ends > unneeded.of(name)
            )
        elif wal_key(cluster_id, chain, sequence) in broken:
            result.kept.append(sequence)
    return result


async def unneeded_end(store: MetadataStore, partition: Partition) -> int:
    """Return the offset below which no heir and no reader looks into chains.

    It is the end of the tier, or where the first chain in the item begins: what is before has been
    tiered. A log start counts only where nothing is tiered: there an heir begins at it.
    """
    start = partition.log_start_offset
    where = (store, partition.topic_id, partition.partition)
    end = await read_tiered_end(*where, start)
    if end <= start:
        keys = KeyRange(
            end=segment_key_from(start + 1), limit=OVERLAPPING_COUNT_MAX, is_descending=True
        )
        before = await read_segments(*where, keys=keys)
        ends = [one.end_offset for one in before if one.state is SegmentState.COPY_FINISHED]
        end = min(max(ends, default=start), start)
    first = partition.wal[0].first_offset if partition.wal else 0
    return max(end, first)


async def read_unneeded_ends(
    store: MetadataStore,
    names: Collection[PartitionName],
    *,
    unneeded: Collection[PartitionName] = (),
) -> UnneededEnds:
    """Return the ends of these partitions; those without an item are needed.

    Nothing of ``unneeded`` is, such as of deleted topics. Raises the store's errors.
    """
    keys = {partition_key(name.topic_id, name.partition): name for name in names}
    items = await store.get_many(keys)
    ends = {
        keys[key]: await unneeded_end(store, Partition.from_item(item))
        for key, item in items.items()
    }
    ends.update(dict.fromkeys(unneeded, INT64_MAX))
    return UnneededEnds(ends)
