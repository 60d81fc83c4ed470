"""The last slices below a log start that is beyond the tier; a new log needs their producers.

Records may be deleted before they were ever tiered. A log that begins at such a log start does not
know the producers of before, and would accept a repeated batch whose acknowledgement was lost. The
objects of these records stay until the tier has passed them. So the log begins some slices earlier,
on leaders and on followers, which may lead next. Producers repeat the batches that they sent last:
one megabyte of slices is enough, and reading it delays no leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tidelog_core.diskless.chain.store import ChainStore, ListedChain
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

from tidelog_node.diskless.recovery.chain_slices import StoredSlice, WantedSlices, list_chains

DELETED_BYTES_MAX = 1 << 20  # of a partition
RECOVERED_BYTES_MAX = 32 << 20  # of all partitions that are recovered together
DELETED_OFFSETS_MAX = 100_000
GATEWAY_CHAINS_MAX = 64  # that are listed for the partitions that are recovered together

StoredObjects = Mapping[ChainName, Collection[int]]
"""The sequences of objects that a listing has, by chain."""


def lacks_deleted(log: LocalLog, *, log_start_offset: int, start_offset: int) -> bool:
    """Return whether the log is empty at the partition's log start, and knows no producers.

    ``start_offset`` is where the tier ends, or the log start if that is beyond. If the tier ends
    at the log start, an empty log has got its producers from there.
    """
    return (
        0 < start_offset == log_start_offset
        and log.log_end_offset == log.local_log_start_offset == start_offset
        and not len(log.producers.state)
    )


def wanted_below(chains: EpochChains, log_start_offset: int) -> WantedSlices:
    """Return the slices to read so that those below the log start are included."""
    return WantedSlices(chains, max(0, log_start_offset - DELETED_OFFSETS_MAX))


async def stored_objects(
    chains: ChainStore,
    listings: Mapping[ChainName, ListedChain],
    slices_by_chain: Iterable[Mapping[ChainName, Sequence[StoredSlice]]],
) -> StoredObjects:
    """Return the objects in the listings, and those of gateways that have some of the slices.

    ``slices_by_chain`` has the slices of some partitions. Raises the store's errors.
    """
    slices = (one for of_chain in slices_by_chain for some in of_chain.values() for one in some)
    gateways = {one.chain for one in slices if one.is_reference} - listings.keys()
    listed = await list_chains(chains, sorted(gateways)[:GATEWAY_CHAINS_MAX])
    return {
        name: {one.sequence for one in listing.objects}
        for name, listing in {**listings, **listed}.items()
    }


def slices_below(
    chains: EpochChains,
    slices_by_chain: Mapping[ChainName, Sequence[StoredSlice]],
    stored: StoredObjects,
    *,
    end_offset: int,
    bytes_max: int = DELETED_BYTES_MAX,
) -> list[StoredSlice]:
    """Return the last slices up to ``end_offset``, without a gap, in order.

    The last one counts at any size: a fast producer's slice may have more than ``bytes_max``.
    An index may have slices whose objects are gone: those alone count whose bytes are stored.
    """
    ends = [*(entry.first_offset for entry in chains[1:]), None]
    known: dict[int, StoredSlice] = {}  # by their ends
    for entry, following in zip(chains, ends, strict=True):
        for one in slices_by_chain.get(entry.chain, ()):
            is_of_epoch = one.leader_epoch == entry.leader_epoch
            is_acknowledged = following is None or one.end_offset <= following
            if is_of_epoch and is_acknowledged and one.sequence in stored.get(one.chain, ()):
                known[one.end_offset] = one
    below: list[StoredSlice] = []
    size_bytes, at = 0, end_offset
    while (last := known.get(at)) is not None:
        size_bytes += last.size_bytes
        if below and size_bytes > bytes_max:
            break
        below.append(last)
        at = last.base_offset
    return below[::-1]


def begin_with_deleted(log: LocalLog, below: Sequence[StoredSlice]) -> None:
    """Start an empty log where the slices begin, with the leader epochs that it had there."""
    begin = below[0].base_offset
    epochs = [one for one in log.leader_epochs if one[1] <= begin]
    log.truncate_fully_and_start_at(begin, leader_epochs=epochs)
