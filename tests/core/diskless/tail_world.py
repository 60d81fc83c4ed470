"""Nodes that write, seal, take over, tier and collect chains, one step of chance after the other.

The model beside it has each partition's history, and how far it is committed. Nothing in it asks
the classes that read chains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.wal.build import ForeignSlice, WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.wal_objects import CLUSTER, CREATED_MS, batch

PARTITIONS = [PartitionName(UUID(int=77 + n // 2), n % 2) for n in range(3)]
PAGE_SIZE = 3
IN_FLIGHT_MAX = 4


@dataclass
class Entry:
    """A batch of a partition's history."""

    base: int
    end: int
    producer: int = -1
    marker: ControlType | None = None
    is_transactional: bool = False
    data: bytes = b""  # empty: a reference's
    foreign: ForeignSlice | None = None
    place: tuple[ChainName, int] | None = None  # of the object that gives it its offsets


@dataclass
class Led:
    """A partition, and what its leader has appended."""

    name: PartitionName
    chains: EpochChains
    entries: list[Entry] = field(default_factory=list)
    tier_end: int = 0

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def open_at(self, end: int, start: int = 0) -> dict[int, int]:
        """Return the transactions of batches in ``[start, end)`` that have no marker there."""
        found: dict[int, int] = {}
        for one in self.entries:
            if start <= one.base and one.end <= end and one.is_transactional:
                if one.marker is None:
                    found.setdefault(one.producer, one.base)
                else:
                    found.pop(one.producer, None)
        return found

    def hidden(self) -> set[int]:
        """Return the base offsets of the batches of aborted transactions."""
        found: set[int] = set()
        ongoing: dict[int, list[int]] = {}
        for one in self.entries:
            if one.is_transactional and one.marker is None:
                ongoing.setdefault(one.producer, []).append(one.base)
            elif one.marker is not None:
                bases = ongoing.pop(one.producer, [])
                found.update(bases if one.marker is ControlType.ABORT else [])
        return found


class TailWorld:
    """Two nodes, three partitions, and one bucket."""

    def __init__(self, store: ObjectStore, seed: int) -> None:
        self.random = Random(seed)
        self._store = store
        self._lock = asyncio.Lock()
        self._chain_count = 0
        self.owners: dict[ChainName, ChainOwner] = {}
        self.sealed: dict[ChainName, int] = {}
        self.collected: dict[ChainName, set[int]] = {}
        self.live = [self._new_chain(), self._new_chain()]
        self.led: list[Led] = []
        for n, name in enumerate(PARTITIONS):
            chain = self.live[n % 2].chain
            self.led.append(Led(name, (EpochChain(0, chain, 0),)))

    def committed_end(self, led: Led) -> int:
        """Return where the partition's committed records end."""
        end = 0
        for one in led.entries:
            if one.place is None or one.place[1] >= self.owners[one.place[0]].committed_end:
                break
            end = one.end
        return end

    async def step(self) -> None:
        """Do one thing."""
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (12, self._append),
            (10, self._build),
            (12, self._put),
            (1, self._take_over),
            (1, self._hand_over),
            (4, self._tier),
            (5, self._collect),
            (1, self._seal_late),
            (1, self._put_garbage),
            (3, self._write_as_gateway),
        ]
        (chosen,) = self.random.choices([s for _, s in steps], [weight for weight, _ in steps])
        async with self._lock:  # Reads of a folder are concurrent.
            await chosen()

    # -- leaders --

    async def _append(self) -> None:
        random = self.random
        led = random.choice(self.led)
        ongoing = led.open_at(led.end)
        for _ in range(random.randint(1, 3)):
            base, producer = led.end, random.randint(1, 3)
            kind = random.random()
            if kind < 0.3 and producer in ongoing:
                marker = random.choice([ControlType.ABORT, ControlType.COMMIT])
                data = build_end_transaction_marker(
                    EndTransactionMarker(marker, 1),
                    producer_id=producer,
                    producer_epoch=0,
                    timestamp_ms=CREATED_MS,
                    base_offset=base,
                    leader_epoch=0,
                )
                led.entries.append(Entry(base, base + 1, producer, marker, True, data))
                del ongoing[producer]
                continue
            count = random.randint(1, 3)
            is_transactional = kind < 0.7
            if is_transactional:
                ongoing.setdefault(producer, base)
                data = batch(
                    base,
                    count,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=base,
                    is_transactional=True,
                )
            else:
                producer, data = -1, batch(base, count)
            led.entries.append(Entry(base, base + count, producer, None, is_transactional, data))

    async def _build(self) -> None:
        owner = self.random.choice(self.live)
        if owner.next_sequence >= owner.committed_end + IN_FLIGHT_MAX:
            return
        slices: list[WalSlice] = []
        references: list[ForeignSlice] = []
        for led in self.led:
            if led.chains[-1].chain != owner.chain:
                continue
            new = [one for one in led.entries if one.place is None]
            new = new[: self.random.randint(0, len(new))]
            run: list[bytes] = []
            for one in new:
                one.place = (owner.chain, owner.next_sequence)
                if one.foreign is None:
                    run.append(one.data)
                    continue
                if run:
                    slices.append(self._slice(led, run))
                    run = []
                references.append(one.foreign)
            if run:
                slices.append(self._slice(led, run))
        if slices or references:
            owner.build(slices, references)

    def _slice(self, led: Led, run: list[bytes]) -> WalSlice:
        return WalSlice(*led.name, led.chains[-1].leader_epoch, b"".join(run))

    async def _put(self) -> None:
        owner = self.random.choice(self.live)
        if owner.in_flight:
            sequence = self.random.choice(sorted(owner.in_flight))
            assert await owner.put(sequence) is PutOutcome.STORED

    async def _write_as_gateway(self) -> None:
        led = self.random.choice(self.led)
        leader = led.chains[-1]
        owners = [one for one in self.live if one.chain != leader.chain and not one.in_flight]
        if not owners:
            return
        count = self.random.randint(1, 3)
        data = batch(0, count) + batch(0, 2)
        sequence = await owners[0].commit([WalSlice(*led.name, -1, data, is_foreign=True)])
        foreign = owners[0].foreign(sequence, leader.leader_epoch, led.end)
        base = led.end
        # One entry: its batches get their places together.
        led.entries.append(Entry(base, base + count + 2, foreign=foreign))

    # -- heirs --

    async def _take_over(self) -> None:
        """Seal a chain; the node goes on with a new one, and the other takes its partitions."""
        number = self.random.randrange(2)
        owner = self.live[number]
        end = owner.committed_end
        heir = self.live[1 - number]
        assert await owner.seal(heir.chain) is PutOutcome.STORED
        self.sealed[owner.chain] = end
        self.live[number] = self._new_chain()
        for led in self.led:
            if led.chains[-1].chain == owner.chain:
                kept = self.committed_end(led)
                led.entries = [one for one in led.entries if one.end <= kept]
                self._begin(led, self.random.choice(self.live).chain)

    async def _hand_over(self) -> None:
        led = self.random.choice(self.led)
        if all(one.place is not None for one in led.entries) and (
            self.committed_end(led) == led.end
        ):
            self._begin(led, self.random.choice(self.live).chain)

    def _begin(self, led: Led, chain: ChainName) -> None:
        epoch = led.chains[-1].leader_epoch + 1
        led.chains = (*led.chains, EpochChain(epoch, chain, led.end))

    def _new_chain(self) -> ChainOwner:
        owner = ChainOwner(self._store, CLUSTER, chain_name(self._chain_count))
        self._chain_count += 1
        self.owners[owner.chain] = owner
        self.collected[owner.chain] = set()
        return owner

    async def _seal_late(self) -> None:
        """A seal comes late where an object was collected: it ends nothing."""
        for owner in self.live:
            if gone := sorted(self.collected[owner.chain]):
                sequence = self.random.choice(gone)
                await owner.seal(chain_name(0), at=sequence)
                self.collected[owner.chain].discard(sequence)

    async def _put_garbage(self) -> None:
        """A resumed owner of a sealed chain puts what it had in flight."""
        for chain in self.sealed:
            owner = self.owners[chain]
            if owner.in_flight:
                sequence = min(owner.in_flight)
                built = owner.in_flight.pop(sequence)
                outcome = await owner.chains.put(chain, sequence, built.data)
                assert (outcome is PutOutcome.TAKEN) == (sequence == self.sealed[chain])
                return

    # -- the tier --

    async def _tier(self) -> None:
        led = self.random.choice(self.led)
        committed = self.committed_end(led)
        stable = min([committed, *led.open_at(committed).values()])
        ends = [one.end for one in led.entries if led.tier_end < one.end <= stable]
        if ends:
            led.tier_end = self.random.choice(ends)
            self._forget_tiered_epochs(led)

    def _forget_tiered_epochs(self, led: Led) -> None:
        while len(led.chains) > 1 and led.chains[1].first_offset <= led.tier_end:
            led.chains = led.chains[1:]

    async def _collect(self) -> None:
        owner = self.random.choice(list(self.owners.values()))
        needed = {
            one.place[1]
            for led in self.led
            for one in led.entries
            if one.place is not None and one.place[0] == owner.chain and one.end > led.tier_end
        }
        needed |= {
            one.foreign.sequence
            for led in self.led
            for one in led.entries
            if one.foreign is not None and one.foreign.gateway == owner.chain
        }
        end = owner.committed_end
        if owner.chain not in self.sealed and end:
            end = owner.stored[end - 1].header.committed_end
        gone = [n for n in range(end) if n not in needed and n in owner.stored]
        gone = gone[: self.random.randint(0, len(gone))]
        await owner.collect(gone)
        self.collected[owner.chain].update(gone)


class InterruptedStore:
    """A reader's way to the bucket: listings in pages, and things happen between requests."""

    def __init__(self, store: ObjectStore, interrupt: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._interrupt = interrupt
        self.list_count = 0
        self.get_count = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        await self._interrupt()
        self.get_count += 1
        return await self._store.get_range(key, start, end)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.list_count += 1
        while True:
            await self._interrupt()
            page: list[ObjectMeta] = []
            async for meta in self._store.list(prefix, start_after=start_after):
                page.append(meta)
                if len(page) == PAGE_SIZE:
                    break
            for meta in page:
                yield meta
            if len(page) < PAGE_SIZE:
                return
            start_after = page[-1].key


def chains_of(led: Sequence[Led]) -> set[ChainName]:
    """Return the chains that the partitions' items name."""
    return {one.chain for partition in led for one in partition.chains}
