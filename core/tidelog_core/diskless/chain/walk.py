"""Walks the listed objects of a chain in order, and says which of them are part of the log.

Nothing but the bucket is asked. An object that cannot be read still fills its place: its
predecessor rule holds for those above. It is yielded with its problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

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


class Place(Enum):
    """What an object is for its chain."""

    COMMITTED = "committed"
    SEAL = "seal"  # the one that ends the chain
    LATE_SEAL = "late seal"  # it replaced a collected object, and ends nothing
    GARBAGE = "garbage"  # above the seal: never acknowledged
    PENDING = "pending"  # above a gap that nothing seals yet


class WalkedObject(NamedTuple):
    """A listed object and its place. ``footer`` is ``None`` if it was not read, or is damaged."""

    listed: ListedObject
    place: Place
    footer: WalFooter | None
    problem: str = ""


async def walk_chain(
    chains: ChainStore,
    chain: ChainName,
    listed: Sequence[ListedObject],
    *,
    on_read: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[WalkedObject]:
    """Yield the listed objects in order of sequence, but for those that are gone by now.

    Garbage is not read. Raises ``StoreUnavailable``.
    """
    end = await _known_end(chains, chain, listed)
    is_sealed = False
    for at in range(0, len(listed), OBJECTS_AT_ONCE_MAX):
        some = listed[at : at + OBJECTS_AT_ONCE_MAX]
        read = [] if is_sealed else await _footers(chains, chain, some)
        on_read(len(some))
        for number, one in enumerate(some):
            if is_sealed:
                yield WalkedObject(one, Place.GARBAGE, None)
                continue
            footer, problem = read[number]
            if footer is None and not problem:
                continue
            if footer is not None:
                end = max(end, footer.header.committed_end)
            place = _place(one, footer, end)
            is_sealed = place is Place.SEAL
            if place is Place.COMMITTED and one.sequence == end:
                end += 1
            yield WalkedObject(one, place, footer, problem)


def looks_like_seal(listed: ListedObject) -> bool:
    """Return whether the object has the size of a seal, which data objects never have."""
    return listed.size_bytes == SEAL_SIZE_BYTES


def _place(one: ListedObject, footer: WalFooter | None, end: int) -> Place:
    is_seal = looks_like_seal(one) if footer is None else footer.is_seal
    if one.sequence > end:
        return Place.PENDING
    if not is_seal:
        return Place.COMMITTED
    return Place.SEAL if one.sequence == end else Place.LATE_SEAL


async def _known_end(chains: ChainStore, chain: ChainName, listed: Sequence[ListedObject]) -> int:
    """Return the greatest committed end of all headers.

    Those of data objects never decrease. A seal's may be greater than those of what its owner put
    above it later: that was built before.
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
