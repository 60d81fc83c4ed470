"""The objects of a chain that are not committed: the worker builds, keeps and puts them.

An object's bytes follow from its request: the offsets, the rows and the time that were fixed when
it was built first. So a worker that was started since builds the same bytes again, from wherever
the log has the offsets then. Objects are built one at a time in the order of their sequences, also
after a restart: the worker then has room for the first ones, whose commit makes room for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidelog_core.diskless.chain.chain_writer import BuildObject, PutOutcome
from tidelog_core.diskless.chain.noted_ranges import ObjectContent
from tidelog_core.diskless.wal.build import ForeignSlice, ObjectName
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.errors import StorageError, StoreUnavailable, TidelogError, TierUnavailable

from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.tier.wal_messages import SliceFiles, WalNotBuilt

BUILD_FAILURES_MAX = 6  # in a row; files that are being exchanged are there within a second
PUT_SECONDS = 4.0  # of the first attempt, in addition to the time for its bytes
PUT_BYTES_PER_SECOND_MIN = 1 << 20
PUT_SECONDS_MAX = 120.0


class ChainBroken(StorageError):
    """The local logs do not have what an object must be built from, so the chain cannot go on."""

    hint = "look in the node's log for a disk that has failed"


class PendingObject:
    """An object from the decision to build it until it is committed."""

    __slots__ = (
        *("attempt_count", "began_s", "built", "content", "created_ms", "failures", "header"),
        *("open", "outcome", "references"),
    )

    def __init__(self, decision: BuildObject, created_ms: int) -> None:
        self.built = decision
        self.content = decision.content
        self.created_ms = created_ms
        self.header: WalHeader | None = None  # None: never built
        self.references: tuple[ForeignSlice, ...] = ()  # as it was built
        self.failures = 0  # builds in vain, in a row
        self.attempt_count = 0  # PUTs sent
        self.open = 0  # PUTs not answered
        self.began_s = 0.0  # the loop's time at which the last PUT was sent
        self.outcome: PutOutcome | None = None  # of the request that built it, if it put it too


class PendingObjects:
    """The uncommitted objects of one chain. For one event loop."""

    def __init__(
        self,
        wal: WalClient,
        *,
        slices_of: Callable[[ObjectContent], Sequence[SliceFiles]],
        references_of: Callable[[ObjectContent], tuple[ForeignSlice, ...]],
        clock_ms: Callable[[], int],
    ) -> None:
        """``slices_of`` says where the logs have the ranges now; it raises their errors.

        ``references_of`` says which references an object gets when it is built first.
        """
        self._wal = wal
        self._slices_of = slices_of
        self._references_of = references_of
        self._clock_ms = clock_ms
        self._building = asyncio.Lock()
        self._pending: dict[int, PendingObject] = {}  # by sequence, ascending

    def add(self, decision: BuildObject) -> None:
        """Add the next object of the chain."""
        self._pending[decision.sequence] = PendingObject(decision, self._clock_ms())

    def get(self, sequence: int) -> PendingObject | None:
        """Return the object, ``None`` once it is committed."""
        return self._pending.get(sequence)

    def remove(self, sequence: int) -> PendingObject | None:
        """Forget an object that is committed."""
        return self._pending.pop(sequence, None)

    async def build(self, sequence: int) -> WalHeader:
        """Have the object built for the first time.

        Raises ``TierUnavailable`` while the worker is not there or has no room, ``ChainBroken``,
        other errors of the log's files if another try may help.
        """
        async with self._building:
            return await self._build(self._pending[sequence])

    async def put(self, sequence: int, attempt: int) -> PutOutcome:
        """Put the object by one request, built again if the worker does not have it.

        Raises ``ChainBroken``.
        """
        pending = self._pending[sequence]
        try:
            if self._wal.is_local:
                return await self._store(pending)
            timeout_s = put_timeout_s(pending.content.size_bytes, attempt)
            pending.began_s = asyncio.get_running_loop().time()
            try:
                return await self._wal.put(sequence, timeout_s=timeout_s)
            except WalNotBuilt:
                await self._build_up_to(sequence)
                return await self._wal.put(sequence, timeout_s=timeout_s)
        except ChainBroken:
            raise
        except (TidelogError, OSError):
            return PutOutcome.UNKNOWN  # The worker has ended. It will be asked again.

    async def drop(self, below: int) -> None:
        """Have the worker forget the objects below the sequence, if it is there and keeps them."""
        if self._wal.is_local:
            return
        try:
            await self._wal.drop(below)
        except TidelogError:
            return  # It has no objects then, or the next commit repeats this.

    async def _store(self, pending: PendingObject) -> PutOutcome:
        """Return the outcome of the request that has built the object, or of another one."""
        if pending.outcome is None:
            async with self._building:
                await self._build(pending)
        outcome, pending.outcome = pending.outcome, None
        assert outcome is not None
        return outcome

    async def _build_up_to(self, sequence: int) -> None:
        """Have every object built again that was built, up to this one, in order."""
        async with self._building:
            for pending in [one for number, one in self._pending.items() if number <= sequence]:
                if pending.header is not None:
                    await self._build(pending)

    async def _build(self, pending: PendingObject) -> WalHeader:
        try:
            header = await self._have_built(pending)
        except (TierUnavailable, StoreUnavailable):
            raise  # The logs are not to blame.
        except (TidelogError, OSError) as error:
            pending.failures += 1
            if pending.failures < BUILD_FAILURES_MAX:
                raise
            raise ChainBroken(f"object {pending.built.sequence}: {error}") from error
        pending.failures = 0
        if pending.header is not None and header != pending.header:
            # A topic was deleted since, for example. The PUT of the first bytes may have come.
            raise ChainBroken(f"object {pending.built.sequence} would get other bytes than before")
        pending.header = header
        return header

    async def _have_built(self, pending: PendingObject) -> WalHeader:
        name, content = self._name(pending), pending.content
        slices = self._slices_of(content)
        if pending.header is None:
            pending.references = self._references_of(content)
        if not self._wal.is_local:
            return await self._wal.build(
                name,
                slices,
                epochs=content.epochs,
                marks=content.marks,
                references=pending.references,
            )
        pending.began_s = asyncio.get_running_loop().time()
        header, pending.outcome = await self._wal.store(
            name,
            slices,
            epochs=content.epochs,
            marks=content.marks,
            references=pending.references,
            # Nothing ends a write that has begun: another one would only make both slower.
            timeout_s=PUT_SECONDS_MAX,
        )
        return header

    def _name(self, pending: PendingObject) -> ObjectName:
        built = pending.built
        return ObjectName(
            self._wal.cluster_id,
            self._wal.chain,
            built.sequence,
            built.committed_end,
            built.previous_crc,
            pending.created_ms,
        )


def put_timeout_s(size_bytes: int, attempt: int) -> float:
    """Return how long to wait for the answer to a PUT: longer with each one that had none.

    On a slow line eight objects at once take longer than one, and some attempt must have the time.
    """
    first_s = PUT_SECONDS + size_bytes / PUT_BYTES_PER_SECOND_MIN
    return min(first_s * 2.0 ** min(attempt - 1, 8), PUT_SECONDS_MAX)
