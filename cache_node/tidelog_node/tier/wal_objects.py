"""The WAL worker's work: builds objects of chains, keeps them until they are committed, puts them.

One request builds an object and puts it for the first time, and further ones put it once more.

Objects are built from segment files, so record bytes do not go through the node's event loop. The
worker keeps at most ``built_bytes_max``, or one object of any size, and refuses more. An object is
built once and put as often as the node says, always the same bytes. If the worker dies, the node
has it built again by the same request, which gives the same bytes.

On a store of this machine an object is not kept: one request writes it into the store, and is
repeated if need be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import BinaryIO, TypeVar

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.payload import Chunks
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.wal_indexes import WalIndexes
from tidelog_node.tier.wal_memory import FreeChunks
from tidelog_node.tier.wal_messages import (
    Fields,
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalFull,
    WalIndexRequest,
    WalNotBuilt,
    WalPutRequest,
    WalRequest,
    WalStoreRequest,
)
from tidelog_node.tier.wal_writing import WrittenObject, build_object, write_object

T = TypeVar("T")


class _Kept:
    """An object that is built, and its PUTs under way."""

    __slots__ = ("data", "header", "puts")

    def __init__(self, header: WalHeader, data: Chunks) -> None:
        self.header = header
        self.data = data
        self.puts: set[asyncio.Task[PutOutcome]] = set()


class WalObjects:
    """Answers the requests of ``wal_messages``. For one event loop."""

    def __init__(self, store: ObjectStore, *, built_bytes_max: int, executor: Executor) -> None:
        self._store = store
        self._built_bytes_max = built_bytes_max
        self._executor = executor
        self._building = asyncio.Lock()  # one at a time, so that the limit holds
        self._build_count = 0  # of the requests to build that are not answered
        self._dropped: dict[ChainName, int] = {}  # ends of the drops since the first of those
        self._kept: dict[tuple[ChainName, int], _Kept] = {}
        self.built_bytes = 0  # of the kept objects
        self.free = FreeChunks()  # of dropped ones
        self._indexes = WalIndexes(store, self._on_a_thread)

    async def answer(
        self, request: WalRequest, on_event: Callable[[Fields], None] | None = None
    ) -> Fields:
        """Carry out a request and return the result.

        ``on_event`` gets the header of an object before its first PUT begins. Raises
        ``WalBuildFailed``, ``WalFull``, ``WalNotBuilt``, ``StoreUnavailable``.
        """
        match request:
            case WalBuildRequest():
                return {"header": (await self._build(request)).pack().hex()}
            case WalBuildPutRequest(build, timeout_s):
                header = await self._build(build)
                if on_event is not None:
                    on_event({"header": header.pack().hex()})
                name = build.name
                first = WalPutRequest(name.cluster_id, name.chain, name.sequence, timeout_s)
                return {"outcome": (await self._put(first)).value}
            case WalPutRequest():
                return {"outcome": (await self._put(request)).value}
            case WalStoreRequest():
                return await self._store_new(request)
            case WalDropRequest(chain, below):
                self._drop(chain, below)
                return {}
            case WalIndexRequest():
                return await self._indexes.write(request)

    async def _build(self, request: WalBuildRequest) -> WalHeader:
        name = request.name
        self._build_count += 1
        try:
            async with self._building:
                self._drop(name.chain, name.committed_end)
                kept = self._kept.get((name.chain, name.sequence))
                if kept is None:
                    self._require_wanted(name)
                    kept = await self._build_new(request)
            return kept.header
        finally:
            self._build_count -= 1
            if not self._build_count:
                self._dropped.clear()

    async def _build_new(self, request: WalBuildRequest) -> _Kept:
        name = request.name
        size_bytes = sum(one.size_bytes for one in request.slices)
        if self._kept and self.built_bytes + size_bytes > self._built_bytes_max:
            raise WalFull(
                f"{self.built_bytes} bytes of objects are kept,"
                f" at most {self._built_bytes_max} may be"
            )
        built, data = await self._on_a_thread(lambda: build_object(request, self.free))
        kept = _Kept(built.header, data)
        self._require_wanted(name)
        self._indexes.note(built.header, built.rows)
        self._kept[name.chain, name.sequence] = kept
        self.built_bytes += len(kept.data)
        return kept

    def _require_wanted(self, name: ObjectName) -> None:
        """Raise unless the object is still wanted: once dropped, nobody would drop it again."""
        if name.sequence < self._dropped.get(name.chain, 0):
            raise WalNotBuilt(f"object {name.sequence} of {name.chain} was dropped meanwhile")

    async def _store_new(self, request: WalStoreRequest) -> Fields:
        """Write the object where the store keeps it; nothing of it is kept here."""
        build = request.build
        written: WrittenObject | None = None

        def fill(file: BinaryIO) -> None:
            nonlocal written
            written = write_object(build, file)

        name = build.name
        chains = ChainStore(self._store, name.cluster_id)
        outcome = await chains.put_filled(
            name.chain, name.sequence, fill, timeout_s=request.timeout_s
        )
        if written is None:
            raise StoreUnavailable(f"object {name.sequence} of {name.chain} is not written yet")
        self._indexes.note(written.header, written.rows)
        return {"header": written.header.pack().hex(), "outcome": outcome.value}

    async def _put(self, request: WalPutRequest) -> PutOutcome:
        kept = self._kept.get((request.chain, request.sequence))
        if kept is None:
            raise WalNotBuilt(f"object {request.sequence} of {request.chain} is not built")
        chains = ChainStore(self._store, request.cluster_id)
        attempt = asyncio.create_task(
            chains.put(request.chain, request.sequence, kept.data, timeout_s=request.timeout_s)
        )
        kept.puts.add(attempt)
        try:
            await asyncio.wait([attempt])
        finally:
            kept.puts.discard(attempt)
            if not attempt.done():
                attempt.cancel()
        # The slower one of two PUTs is cancelled once the object is committed.
        return PutOutcome.UNKNOWN if attempt.cancelled() else attempt.result()

    def _drop(self, chain: ChainName, below: int) -> None:
        if self._build_count:
            self._dropped[chain] = max(below, self._dropped.get(chain, 0))
        for place in [one for one in self._kept if one[1] < below and one[0] == chain]:
            kept = self._kept.pop(place)
            self.built_bytes -= len(kept.data)
            for attempt in kept.puts:
                attempt.cancel()  # Its bytes would be kept until it is given up.
            self.free.give_back(kept.data)

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
