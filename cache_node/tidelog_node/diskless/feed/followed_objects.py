"""Takes the slices of one object of a chain for the replicas that lack them.

    the first bytes → footer → slices of wanted partitions, in order of offset → appended

Most objects are read by one request: a chain's objects are about as large as the last one. Where
most of an object is for others, only its first megabyte is, and then what is wanted. A gateway's
slices are in the gateway's object, and this one has references to them: neighbours are read
together, as many as memory allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from crc32c import crc32c
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_footer
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalKind, parse_header
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore
from tidelog_core.turns import Turn

from tidelog_node.diskless.feed.fed_replicas import FedReplica, FedReplicas
from tidelog_node.diskless.recovery.chain_slices import StoredSlice, referenced_slice, stored_slice
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.slice_appends import placed
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_places
from tidelog_node.tier.lent_ranges import LentRange, RangeLender

FIRST_READ_BYTES = 1 << 20  # most objects of a chain with little traffic are smaller
FIRST_READ_BYTES_MAX = 10 << 20  # the largest objects have records of 8 MiB
AHEAD_BYTES_MAX = 20 << 20  # of objects that are read at once
WANTED_SHARE_MIN = 0.5  # of an object that is worth reading as a whole
REFERENCED_BYTES_MAX = 32 << 20  # of gateways' slices that are read at once

Slices = Sequence[tuple[PartitionName, StoredSlice]]


class FollowedObjects:
    """The objects of one chain, as its replicas take them. Used by one task."""

    def __init__(
        self,
        chain: ChainName,
        replicas: FedReplicas,
        *,
        store: ObjectStore,
        lender: RangeLender,
        read: RangeReader,
        cluster_id: str,
    ) -> None:
        """``lender`` reads the objects one by one, ``read`` what they refer to."""
        self._chain = chain
        self._replicas = replicas
        self._lender = lender
        self._read = read
        self._cluster_id = cluster_id
        self._chains = ChainStore(store, cluster_id, read=read)
        self._turn = Turn()
        self._first_bytes = FIRST_READ_BYTES  # that the next object's first request reads

    @property
    def at_once_max(self) -> int:
        """The greatest number of objects to read at once."""
        return AHEAD_BYTES_MAX // self._first_bytes

    async def read_head(self, sequence: int) -> LentRange:
        """Return an object's first bytes. Raises ``ObjectNotFound``, and the store's errors.

        Waits for room in the memory of all feeds, so callers begin with the next object.
        """
        return await self._lender.lend_in_turn(self._key(sequence), 0, self._first_bytes)

    async def take(self, head: memoryview) -> None:
        """Append the next object's slices to the replicas, given the object's first bytes.

        They are writable. Raises the store's errors, and ``CorruptObject``.
        """
        sequence = self._replicas.next_sequence
        key = self._key(sequence)
        footer = await self._footer(head, key)
        own = [
            (PartitionName.of_row(row), stored_slice(self._chain, sequence, row))
            for row in footer.slices
            if not row.is_foreign  # else it has offsets in another chain
        ]
        referenced = [
            (PartitionName.of_row(row), referenced_slice(sequence, row))
            for row in footer.references
        ]
        size_bytes = footer.header.size_bytes
        wanted_bytes = sum(one.size_bytes for name, one in own if self._wants(name, one))
        is_for_us = wanted_bytes >= WANTED_SHARE_MIN * size_bytes
        self._first_bytes = _first_bytes(size_bytes) if is_for_us else FIRST_READ_BYTES
        if is_for_us and size_bytes > len(head):
            whole = await self._lender.lend(key, 0, size_bytes)
            try:
                await self._take_all(own, referenced, whole.data, key)
            finally:
                whole.release()
        else:
            await self._take_all(own, referenced, head, key)

    async def _take_all(self, own: Slices, referenced: Slices, head: memoryview, key: str) -> None:
        foreign: Mapping[StoredSlice, bytearray] = {}
        # The leader's own slices come first in the object, in any order of offsets.
        found = sorted((*own, *referenced), key=lambda one: one[1].base_offset)
        for at, (name, one) in enumerate(found):
            if one.is_reference and one not in foreign and self._wants(name, one) is not None:
                foreign = await self._read_referenced(self._wanted_references(found, at))
            await self._take(name, one, head, key, foreign)
            await self._turn.step()  # All of an object, and of those read ahead, may take long.

    def _wanted_references(self, found: Slices, at: int) -> list[StoredSlice]:
        """Return the references from ``at`` on that replicas want, as many as memory allows.

        While a leader cannot store its objects, the references of many megabytes fit into one.
        """
        wanted: list[StoredSlice] = []
        size_bytes = 0
        for name, one in itertools.islice(found, at, None):
            if one.is_reference and self._wants(name, one) is not None:
                size_bytes += one.size_bytes
                if wanted and size_bytes > REFERENCED_BYTES_MAX:
                    break
                wanted.append(one)
        return wanted

    async def _read_referenced(self, slices: Sequence[StoredSlice]) -> dict[StoredSlice, bytearray]:
        """Return the bytes of gateways' slices, with their offsets: one read for neighbours."""
        of_object: dict[str, list[StoredSlice]] = {}
        for one in slices:
            key = wal_key(self._cluster_id, one.chain, one.sequence)
            of_object.setdefault(key, []).append(one)
        found: dict[StoredSlice, bytearray] = {}
        for key, some in of_object.items():
            places = [SlicePlace(one.position, one.size_bytes, one.crc32c) for one in some]
            for one, data in zip(some, await read_places(self._read, key, places), strict=True):
                found[one] = placed(data, one, key=key)
        return found

    async def _footer(self, head: memoryview, key: str) -> WalFooter:
        header = parse_header(head[:HEADER_SIZE], key=key)
        if header.kind is not WalKind.DATA or header.sequence != self._replicas.next_sequence:
            # A late seal has replaced a collected object, or the broker leads no more.
            self._replicas.joined.clear()
            raise StoreUnavailable(f"{key} has no records, and more are committed")
        if header.size_bytes <= len(head):
            return parse_footer(head, object_size=header.size_bytes, key=key)
        listed = ListedObject(self._replicas.next_sequence, header.size_bytes)
        return await self._chains.footer(self._chain, listed)

    def _wants(self, name: PartitionName, one: StoredSlice) -> FedReplica | None:
        """Return the replica that lacks the slice, if one follows this chain in its epoch."""
        fed = self._replicas.get(name)
        if fed is None or name not in self._replicas.joined or not fed.is_current:
            return None
        if one.leader_epoch != fed.follower.leader_epoch:
            return None  # From before the partition left and came back.
        return fed if one.end_offset > fed.replica.log.high_watermark else None

    async def _take(
        self,
        name: PartitionName,
        one: StoredSlice,
        head: memoryview,
        key: str,
        foreign: Mapping[StoredSlice, bytearray],
    ) -> None:
        fed = self._wants(name, one)
        if fed is None:
            return
        if not fed.continues_at(one.base_offset):
            self._replicas.joined.discard(name)
            return
        if one.is_reference:
            if one in foreign:
                self._replicas.append(name, fed, memoryview(foreign[one]), one)
            else:  # The replica has begun to want it while others were read.
                self._replicas.joined.discard(name)
        elif one.end <= len(head):
            data = _checked(head[one.position : one.end], one, key)
            self._replicas.append(name, fed, data, one)
        else:
            piece = await self._lender.lend(key, one.position, one.end)
            try:
                self._replicas.append(name, fed, _checked(piece.data, one, key), one)
            finally:
                piece.release()

    def _key(self, sequence: int) -> str:
        return wal_key(self._cluster_id, self._chain, sequence)


def _first_bytes(size_bytes: int) -> int:
    """Return how much to read at once of the object after one of this size."""
    wanted = -(-(size_bytes + size_bytes // 4) // FIRST_READ_BYTES) * FIRST_READ_BYTES
    return min(wanted, FIRST_READ_BYTES_MAX)


def _checked(data: memoryview, one: StoredSlice, key: str) -> memoryview:
    """Return the slice's bytes. Raises ``CorruptObject`` unless they are whole."""
    if len(data) != one.size_bytes or crc32c(data) != one.crc32c:
        raise CorruptObject(key, f"the CRC of the slice at {one.position} does not match")
    return data
