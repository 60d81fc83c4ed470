"""The last slices below a log start that is beyond the tier, for their producers.

Records may be deleted before they were ever tiered. A log that begins at such a log start does not
know who has written before, and would take a batch again whose ack was lost. Their objects stay
until the tier has passed them, so the log begins some slices earlier. Producers repeat what they
have sent last: a megabyte of it is enough, and does not hold up the lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog_core.diskless.chain.store import ListedChain
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

from tidelog_node.diskless.recovery.chain_slices import StoredSlice, WantedSlices

DELETED_BYTES_MAX = 1 << 20  # of a partition
RECOVERED_BYTES_MAX = 32 << 20  # of all partitions that are recovered together
DELETED_OFFSETS_MAX = 100_000


def wanted_below(chains: EpochChains, log_start_offset: int) -> WantedSlices:
    """Return what to read to have the slices below the log start, too."""
    return WantedSlices(chains, max(0, log_start_offset - DELETED_OFFSETS_MAX))


def slices_below(
    chains: EpochChains,
    found: Mapping[ChainName, Sequence[StoredSlice]],
    listings: Mapping[ChainName, ListedChain],
    *,
    end_offset: int,
    bytes_max: int = DELETED_BYTES_MAX,
) -> list[StoredSlice]:
    """Return the last slices up to ``end_offset``, without a gap, in order.

    An index may have slices whose objects are gone: only listed objects count. A gateway's object
    is in a chain that was not listed, so its references end the search.
    """
    ends = [*(entry.first_offset for entry in chains[1:]), None]
    known: dict[int, StoredSlice] = {}  # by their ends
    for entry, following in zip(chains, ends, strict=True):
        listing = listings.get(entry.chain)
        there = set() if listing is None else {one.sequence for one in listing.objects}
        for one in found.get(entry.chain, ()):
            is_of_epoch = one.leader_epoch == entry.leader_epoch
            is_acknowledged = following is None or one.end_offset <= following
            if is_of_epoch and is_acknowledged and not one.is_reference and one.sequence in there:
                known[one.end_offset] = one
    below: list[StoredSlice] = []
    size_bytes, at = 0, end_offset
    while (last := known.get(at)) is not None:
        size_bytes += last.size_bytes
        if size_bytes > bytes_max:
            break
        below.append(last)
        at = last.base_offset
    return below[::-1]
