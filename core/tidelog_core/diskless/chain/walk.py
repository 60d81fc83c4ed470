"""Walks the listed objects of a chain in order, and says which of them are part of the log.

The bucket alone decides it. A damaged object is yielded with its problem; as it exists, objects
above it can be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.header import HEADER_SIZE, TRAILER_SIZE, WalKind
from tidelog_core.diskless.wal.rows import ROW_SIZES_BYTES, WalSection
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.tier.sections import HEADER_CRC, SECTION

READS_AT_ONCE_MAX = 16
OBJECTS_AT_ONCE_MAX = 64  # footers in memory
# Header and its copy, a table of one row, who sealed, the trailer. No data object is as small.
SEAL_SIZE_BYTES = (
    2 * HEADER_SIZE
    + SECTION.size
    + HEADER_CRC.size
    + ROW_SIZES_BYTES[WalSection.SEAL]
    + TRAILER_SIZE
)


class ObjectState(Enum):
    """Whether an object is part of the log that its chain is."""

    COMMITTED = "committed"
    SEAL = "seal"  # the one that ends the chain
    LATE_SEAL = "late seal"  # it replaced a collected object, and ends nothing
    GARBAGE = "garbage"  # above the seal: never acknowledged
    PENDING = "pending"  # above a gap that nothing seals yet


class WalkedObject(NamedTuple):
    """A listed object and its state. ``footer`` is ``None`` if it was not read, or is damaged."""

    listed: ListedObject
    state: ObjectState
    footer: WalFooter | None
    problem: str = ""


async def walk_chain(
    chains: ChainStore,
    chain: ChainName,
    listed: Sequence[ListedObject],
    *,
    on_read: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[WalkedObject]:
    """Yield the listed objects in order of sequence, without those deleted since the listing.

    Garbage is not read. ``on_read`` gets the number of objects in each batch of reads. Raises
    ``StoreUnavailable``.
    """
    end = await _known_end(chains, chain, listed)
    is_sealed = False
    for some in batched(listed, OBJECTS_AT_ONCE_MAX):
        read = [] if is_sealed else await _footers(chains, chain, some)
        on_read(len(some))
        for number, one in enumerate(some):
            if is_sealed:
                yield WalkedObject(one, ObjectState.GARBAGE, None)
                continue
            footer, problem = read[number]
            if footer is None and not problem:
                continue
            if footer is not None:
                end = max(end, footer.header.committed_end)
            state = _state(one, footer, end)
            is_sealed = state is ObjectState.SEAL
            if state is ObjectState.COMMITTED and one.sequence == end:
                end += 1
            yield WalkedObject(one, state, footer, problem)


def looks_like_seal(listed: ListedObject) -> bool:
    """Return whether the object has the size of a seal, which data objects never have."""
    return listed.size_bytes == SEAL_SIZE_BYTES


def _state(one: ListedObject, footer: WalFooter | None, end: int) -> ObjectState:
    is_seal = looks_like_seal(one) if footer is None else footer.is_seal
    if one.sequence > end:
        return ObjectState.PENDING
    if not is_seal:
        return ObjectState.COMMITTED
    return ObjectState.SEAL if one.sequence == end else ObjectState.LATE_SEAL


async def _known_end(chains: ChainStore, chain: ChainName, listed: Sequence[ListedObject]) -> int:
    """Return the greatest committed end of all headers.

    The committed ends of data objects never decrease, so the last data object is enough. A seal may
    have a greater one than the objects above it, which their owner had built before.
    """
    ends = [0]
    is_data_read = False
    for one in reversed(listed):
        if is_data_read and not looks_like_seal(one):
            continue
        try:
            header = await chains.header(chain, one.sequence)
        except CorruptObject:
            continue
        if header is not None:
            ends.append(header.committed_end)
            is_data_read |= header.kind is WalKind.DATA
    return max(ends)


async def _footers(
    chains: ChainStore, chain: ChainName, listed: Sequence[ListedObject]
) -> list[tuple[WalFooter | None, str]]:
    """Return footer or problem of each object; neither if it is gone."""
    slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def read(one: ListedObject) -> tuple[WalFooter | None, str]:
        async with slots:
            try:
                return await chains.footer(chain, one), ""
            except ObjectNotFound:
                return None, ""
            except CorruptObject as error:
                is_same = await _is_same(chains, chain, one)
                return None, error.problem if is_same else ""

    tasks: list[Awaitable[tuple[WalFooter | None, str]]] = [read(one) for one in listed]
    return await asyncio.gather(*tasks)


async def _is_same(chains: ChainStore, chain: ChainName, one: ListedObject) -> bool:
    """Return whether the key still has the listed object: a late seal may have replaced it."""
    try:
        header = await chains.header(chain, one.sequence)
    except CorruptObject:
        return True
    return header is not None and header.size_bytes == one.size_bytes
