"""The slices of gateways' objects, for comparing references of leaders' chains with them.

A reference says where the bytes are, and how many. If the gateway's object has no such slice, no
node can read the records, although each object is whole.
"""

from __future__ import annotations

from collections import OrderedDict

from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.wal.committed_slices import CommittedSlice
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName

OBJECTS_KEPT_MAX = 64  # References of neighbouring objects name neighbouring objects.

_Object = tuple[ChainName, int]
_Slice = tuple[bytes, int, int, int, int]  # topic id, partition, position, size, CRC-32C


class ReferencedSlices:
    """Reads footers of gateways' objects. For one task."""

    def __init__(self, chains: ChainStore) -> None:
        self._chains = chains
        self._found: OrderedDict[_Object, frozenset[_Slice] | None] = OrderedDict()

    async def has(self, one: CommittedSlice, listed: ListedObject) -> bool:
        """Return whether the object has the slice that a reference names.

        Also true if its footer is damaged, or it is gone: others report that. Raises
        ``StoreUnavailable``.
        """
        place = one.chain, one.sequence
        if place not in self._found:
            self._found[place] = await self._slices(one.chain, listed)
            if len(self._found) > OBJECTS_KEPT_MAX:
                self._found.popitem(last=False)
        there = self._found[place]
        name = one.partition
        wanted = name.topic_id.bytes, name.partition, one.position, one.size_bytes, one.crc32c
        return there is None or wanted in there

    async def _slices(self, chain: ChainName, listed: ListedObject) -> frozenset[_Slice] | None:
        try:
            footer = await self._chains.footer(chain, listed)
        except (CorruptObject, ObjectNotFound):
            return None
        return frozenset(
            (row.topic_id, row.partition, row.position, row.size_bytes, row.crc32c)
            for row in footer.slices
            if row.is_foreign
        )
