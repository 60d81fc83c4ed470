"""The WAL worker's checkpoints: it has built the objects of a chain, and knows their slices.

The rows of every object that is built are kept, packed. When the node asks, those of committed
objects are put into the bucket (``chain.index``). As long as an index is small the next one begins
at the same object and replaces it; a full one stays until its objects are deleted. So an heir reads
few indexes, and few rows are written twice. The last one gets the producers that the node knows.

Everything is bounded: of more rows than ``ROWS_BYTES_MAX`` the oldest are forgotten. Then, and when
the worker was started since, some objects are in no index, and their footers are read instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from tidelog_core.diskless.chain.index import build_index
from tidelog_core.diskless.wal.build import BuiltObject, Snapshot
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.diskless.wal.keys import chain_prefix, checkpoint_key, parse_wal_key
from tidelog_core.errors import ObjectExists
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.wal_messages import Fields, WalIndexRequest

INDEX_BYTES_MAX = 2 << 20  # of rows; then the next index begins
ROWS_BYTES_MAX = 32 << 20  # that wait for an index
INDEXES_AT_ONCE_MAX = 16  # of one request

BuildOnThread = Callable[[Callable[[], BuiltObject]], Awaitable[BuiltObject]]


class WalIndexes:
    """The indexes of the node's current chain. For one event loop; requests come one by one."""

    def __init__(self, store: ObjectStore, on_a_thread: BuildOnThread) -> None:
        self._store = store
        self._on_a_thread = on_a_thread
        self._chain: ChainName | None = None
        self._rows: dict[int, bytes] = {}  # packed, by sequence, ascending
        self._rows_bytes = 0
        # Start and end of the last index, if the next one is to take its place.
        self._growing: tuple[int, int] | None = None
        self._full: list[int] | None = None  # the ends of the others; ``None``: not listed yet

    def note(self, header: WalHeader, rows: bytes) -> None:
        """Remember the packed rows of an object that was built just now."""
        if header.chain != self._chain:
            self._chain = header.chain
            self._rows, self._rows_bytes = {}, 0
            self._growing = None
            self._full = None if header.sequence else []
        if header.sequence in self._rows:
            return
        self._rows[header.sequence] = rows
        self._rows_bytes += len(rows)
        while self._rows_bytes > ROWS_BYTES_MAX:
            self._forget(next(iter(self._rows)))

    async def write(self, request: WalIndexRequest) -> Fields:
        """Write the new rows; return the objects ``[start, end)`` that the indexes have now.

        Raises the store's errors: then it is as if it had not been asked.
        """
        if request.chain != self._chain:
            return {"start": request.committed_end, "end": request.committed_end}
        for sequence in [one for one in self._rows if one < request.first_kept]:
            self._forget(sequence)
        objects = self._known(request.committed_end)
        start = objects[0][0] if objects else request.committed_end
        parts = _parts(objects)[:INDEXES_AT_ONCE_MAX]
        for number, some in enumerate(parts, 1):
            if request.chain != self._chain:
                break
            is_full = sum(len(rows) for _, rows in some) >= INDEX_BYTES_MAX
            snapshots = request.snapshots if number == len(parts) else ()
            await self._put(request, some, snapshots, is_full=is_full)
        if request.chain == self._chain:
            await self._delete_old(request)
        return {"start": start, "end": request.committed_end}

    def _known(self, end: int) -> list[tuple[int, bytes]]:
        """Return the objects below the end whose rows are known, without a gap."""
        start = end
        while start - 1 in self._rows:
            start -= 1
        return [(sequence, self._rows[sequence]) for sequence in range(start, end)]

    async def _put(
        self,
        request: WalIndexRequest,
        objects: list[tuple[int, bytes]],
        snapshots: Sequence[Snapshot],
        *,
        is_full: bool,
    ) -> None:
        chain, cluster_id = request.chain, request.cluster_id
        built = await self._on_a_thread(
            lambda: build_index(
                chain, cluster_id, objects, created_ms=request.created_ms, snapshots=snapshots
            )
        )
        start, end = objects[0][0], built.header.sequence
        before = self._growing
        if before is None or before[1] != end:
            # One that is there was written by a try whose answer was lost.
            with suppress(ObjectExists):
                await self._store.put(checkpoint_key(cluster_id, chain, end), built.data)
        if chain != self._chain:  # Another chain has begun: all that follows is of that one.
            return
        self._growing = None if is_full else (start, end)
        if is_full:
            if self._full is not None:
                self._full.append(end)
            for sequence, _ in objects:
                self._forget(sequence)
        if before is not None and before[1] != end:
            if start <= max(before[0], request.first_kept):
                await self._store.delete([checkpoint_key(cluster_id, chain, before[1])])
            elif self._full is not None:  # Rows were forgotten since.
                self._full.append(before[1])

    async def _delete_old(self, request: WalIndexRequest) -> None:
        """Delete the indexes whose objects are all deleted."""
        if self._full is None:  # The worker was started since they were written.
            self._full = await self._listed(request)
        old = [end for end in self._full if end <= request.first_kept]
        if old:
            keys = [checkpoint_key(request.cluster_id, request.chain, end) for end in old]
            await self._store.delete(keys)
            self._full = [end for end in self._full if end > request.first_kept]

    async def _listed(self, request: WalIndexRequest) -> list[int]:
        found: list[int] = []
        growing = None if self._growing is None else self._growing[1]
        async for meta in self._store.list(chain_prefix(request.cluster_id, request.chain)):
            name = parse_wal_key(meta.key)
            if name is not None and name.is_checkpoint and name.sequence != growing:
                found.append(name.sequence)
        return found

    def _forget(self, sequence: int) -> None:
        self._rows_bytes -= len(self._rows.pop(sequence, b""))


def _parts(objects: Sequence[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """Return the objects in order, as many together as an index has room for."""
    parts: list[list[tuple[int, bytes]]] = []
    size_bytes = INDEX_BYTES_MAX
    for one in objects:
        if size_bytes >= INDEX_BYTES_MAX:
            parts.append([])
            size_bytes = 0
        parts[-1].append(one)
        size_bytes += len(one[1])
    return parts
