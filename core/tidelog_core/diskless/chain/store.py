"""The objects of chains in an object store: keys, bytes and outcomes, no decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.index import ChainIndex, parse_index
from tidelog_core.diskless.wal.footer import (
    SUFFIX_SIZE_BYTES,
    WalFooter,
    missing_footer_range,
    parse_footer,
)
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalHeader, check_key, parse_header
from tidelog_core.diskless.wal.keys import (
    Heir,
    WalKey,
    chain_prefix,
    checkpoint_key,
    heir_key,
    heirs_prefix,
    parse_heir_key,
    parse_wal_key,
    wal_key,
)
from tidelog_core.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
)
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.filled_store import Fill, put_filled
from tidelog_core.objects.one_attempt import put_once
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.store import ObjectStore

logger = logging.getLogger(__name__)

PUT_TIMEOUT_S = 20.0
INDEX_SIZE_BYTES_MAX = 8 << 20  # a larger one is not read
PARSED_HERE_BYTES_MAX = 64 << 10  # of an index; 2 MiB would stop the event loop for 20 ms


ReadRange = Callable[[str, int, int], Awaitable[bytes | memoryview]]  # as ``get_range``


class ListedObject(NamedTuple):
    """A data object or seal in a listing."""

    sequence: int
    size_bytes: int


class ListedChain(NamedTuple):
    """A listing of a chain, both in order."""

    objects: list[ListedObject]  # data objects and seals
    checkpoints: list[ListedObject]


class ChainStore:
    """Reads and writes the chains of one cluster. Tasks may use it concurrently."""

    def __init__(
        self, store: ObjectStore, cluster_id: str, *, read: ReadRange | None = None
    ) -> None:
        """``read`` reads objects faster than the store does, if there is such a way."""
        self._store = store
        self._faster_read = read
        self._cluster_id = cluster_id

    async def put(
        self, chain: ChainName, sequence: int, data: Payload, *, timeout_s: float = PUT_TIMEOUT_S
    ) -> PutOutcome:
        """Create the object with one request. It is durable if the outcome is ``STORED``."""
        key = wal_key(self._cluster_id, chain, sequence)
        return await _outcome(put_once(self._store, key, data, timeout_s=timeout_s))

    async def put_filled(
        self, chain: ChainName, sequence: int, fill: Fill[None], *, timeout_s: float
    ) -> PutOutcome:
        """Create the object that ``fill`` writes, as ``put``. Raises the errors of ``fill``."""
        key = wal_key(self._cluster_id, chain, sequence)
        return await _outcome(put_filled(self._store, key, fill, timeout_s=timeout_s))

    async def header(self, chain: ChainName, sequence: int) -> WalHeader | None:
        """Return the header of the object or seal, ``None`` if there is none.

        Raises ``CorruptObject`` also if it is that of another object; ``StoreUnavailable``.
        """
        key = wal_key(self._cluster_id, chain, sequence)
        try:
            data = await self._read(key, 0, HEADER_SIZE)
        except ObjectNotFound:
            return None
        header = parse_header(data, key=key)
        check_key(header, self._name(chain, sequence), key=key)
        return header

    async def footer(self, chain: ChainName, listed: ListedObject) -> WalFooter:
        """Return all of the object but its data, by one read if its footer is not very long.

        Raises ``CorruptObject``, ``ObjectNotFound`` and ``StoreUnavailable``.
        """
        key, size_bytes = wal_key(self._cluster_id, chain, listed.sequence), listed.size_bytes
        start = max(0, size_bytes - SUFFIX_SIZE_BYTES)
        suffix = await self._read(key, start, size_bytes)
        missing = missing_footer_range(suffix, object_size=size_bytes, key=key)
        if missing is not None:
            before = await self._read(key, *missing)
            suffix = bytes(before) + bytes(suffix)
        footer = parse_footer(suffix, object_size=size_bytes, key=key)
        check_key(footer.header, self._name(chain, listed.sequence), key=key)
        return footer

    async def list(self, chain: ChainName, start: int = 0) -> list[ListedObject]:
        """Return the data objects and seals from a sequence on, in order.

        Raises ``StoreUnavailable``: a listing is whole, or there is none.
        """
        prefix = chain_prefix(self._cluster_id, chain)
        # The checkpoint of the sequence before sorts before every object from ``start`` on.
        after = f"{prefix}{start - 1:020d}~" if start else prefix
        found: list[ListedObject] = []
        async for meta in self._store.list(prefix, start_after=after):
            name = parse_wal_key(meta.key)
            if name is not None and not name.is_checkpoint and name.sequence >= start:
                found.append(ListedObject(name.sequence, meta.size_bytes))
        return found

    async def list_all(
        self, chain: ChainName, start: int = 0, *, below: int | None = None
    ) -> ListedChain:
        """Return the objects and checkpoints from ``start`` on, in order, up to ``below``.

        Raises ``StoreUnavailable``: a listing is whole, or there is none.
        """
        found = ListedChain([], [])
        if below is not None and below <= start:
            return found
        prefix = chain_prefix(self._cluster_id, chain)
        after = f"{prefix}{start - 1:020d}~" if start else prefix
        async for meta in self._store.list(prefix, start_after=after):
            name = parse_wal_key(meta.key)
            if name is not None and below is not None and name.sequence >= below:
                break
            if name is not None and name.sequence >= start:
                some = found.checkpoints if name.is_checkpoint else found.objects
                some.append(ListedObject(name.sequence, meta.size_bytes))
        return found

    async def index(self, chain: ChainName, listed: ListedObject) -> ChainIndex | None:
        """Return the index with this end, ``None`` if it is gone, damaged, or another checkpoint.

        Without an index the caller reads the footers. Raises ``StoreUnavailable``.
        """
        key = checkpoint_key(self._cluster_id, chain, listed.sequence)
        name = WalKey(self._cluster_id, chain, listed.sequence, is_checkpoint=True)
        if listed.size_bytes > INDEX_SIZE_BYTES_MAX:
            return None
        try:
            data = await self._read(key, 0, listed.size_bytes)
            if len(data) <= PARSED_HERE_BYTES_MAX:
                return parse_index(data, name, key=key)
            return await asyncio.to_thread(parse_index, data, name, key=key)
        except ObjectNotFound:
            return None
        except CorruptObject as error:
            logger.warning(
                "checkpoint of a chain is damaged, read without it",
                extra={"key": key, "reason": error.problem},
            )
            return None

    async def delete(self, chain: ChainName, sequences: Sequence[int]) -> None:
        """Delete the objects; which ones may be deleted is for ``collection`` to say."""
        await self._store.delete([wal_key(self._cluster_id, chain, one) for one in sequences])

    async def note_heir(self, chain: ChainName, heir: Heir) -> None:
        """Say in the chain that the heir may get partitions of it. Durable on return, idempotent.

        An heir does so before its first item names it: metadata that are set back cannot hide it.
        Raises the store's errors.
        """
        key = heir_key(self._cluster_id, chain, heir)
        with suppress(ObjectExists):
            await self._store.put(key, b"heir\n")

    async def heirs(self, chain: ChainName) -> Sequence[Heir]:
        """Return the chains that may have got partitions of it, each with its least sequence.

        Raises ``StoreUnavailable``.
        """
        found: dict[ChainName, int] = {}
        async for meta in self._store.list(heirs_prefix(self._cluster_id, chain)):
            heir = parse_heir_key(meta.key)
            if heir is not None:
                found.setdefault(*heir)  # The least sequence is listed first.
        return [Heir(*one) for one in found.items()]

    async def _read(self, key: str, start: int, end: int) -> bytes | memoryview:
        read = self._faster_read or self._store.get_range
        return await read(key, start, end)

    def _name(self, chain: ChainName, sequence: int) -> WalKey:
        return WalKey(self._cluster_id, chain, sequence, is_checkpoint=False)


async def _outcome(attempt: Awaitable[None]) -> PutOutcome:
    try:
        await attempt
    except ObjectExists:
        return PutOutcome.TAKEN
    except OutcomeUnknown:
        return PutOutcome.UNKNOWN
    except StoreUnavailable:  # Nothing was written.
        return PutOutcome.THROTTLED
    return PutOutcome.STORED
