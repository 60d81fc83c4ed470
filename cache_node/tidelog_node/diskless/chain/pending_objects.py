"""The objects of a chain that are not committed: the worker builds, keeps and puts them.

An object's bytes follow from its request: the offsets, the rows and the time that were fixed when
it was built first. So a worker that was started since builds the same bytes again, from wherever
the log has the offsets then. Objects are built one at a time in the order of their sequences, also
after a restart: the worker then has room for the first ones, whose commit makes room for others.

**What may interleave.** The request that builds an object puts it, too, and tells the header in
between. Then the next object is built, while the PUT is under way, and the same object may be put
once more. If the worker ends before its header is known, the object may have been put all the same.
So it is never built from other parts then, even if a partition was dropped since: the chain ends.
A worker that was not there, or whose files did not have the records, has put nothing, and the
object gets what there is at the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidelog_core.diskless.chain.chain_writer import BuildObject, PutOutcome
from tidelog_core.diskless.chain.noted_ranges import ObjectContent
from tidelog_core.diskless.wal.build import ForeignSlice, ObjectName
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.errors import (
    StorageError,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
    WrongObjectStore,
)

from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.tier.wal_messages import (
    SliceFiles,
    WalBuildFailed,
    WalBuildRequest,
    WalFull,
    WalNotBuilt,
)
from tidelog_node.tier.worker_store import WorkerAway

BUILD_FAILURES_MAX = 6  # in a row; files that are being exchanged are there within a second
PUT_SECONDS = 4.0  # of the first attempt, in addition to the time for its bytes
PUT_BYTES_PER_SECOND_MIN = 1 << 20
PUT_SECONDS_MAX = 120.0
# The answers to a build after which this holds.
NOTHING_PUT = (WorkerAway, WrongObjectStore, WalBuildFailed, WalFull)


class ChainBroken(StorageError):
    """The local logs lack records of an object to be built, so the chain cannot continue."""

    hint = "look in the node's log for a disk that has failed"


class PendingObject:
    """An object from the decision to build it until it is committed."""

    __slots__ = (
        *("attempt_count", "began_s", "built", "content", "created_ms", "failures", "header"),
        *("may_be_put", "open", "references", "slices"),
    )

    def __init__(self, decision: BuildObject, created_ms: int) -> None:
        self.built = decision
        self.content = decision.content
        self.created_ms = created_ms
        self.header: WalHeader | None = None  # None: not known to be built
        self.may_be_put = False  # once: its bytes never change from then on
        # As of the last request, without their places in files.
        self.slices: tuple[SliceFiles, ...] = ()
        self.references: tuple[ForeignSlice, ...] = ()
        self.failures = 0  # failed builds in a row
        self.attempt_count = 0  # PUTs sent
        self.open = 0  # PUTs not answered
        self.began_s = 0.0  # the loop's time at which the last PUT was sent

    def note_header(self, header: WalHeader) -> None:
        """Note that the object is built. Raises ``ChainBroken`` if it was another one before."""
        self.failures = 0
        if self.header is not None and header != self.header:
            # A topic was deleted since, for example. The PUT of the first bytes may have come.
            raise self.changed()
        self.header = header

    def changed(self) -> ChainBroken:
        """Return the error of an object that may have been put, and would be another one now."""
        return ChainBroken(f"object {self.built.sequence} would get other bytes than before")


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
        self._loop = asyncio.get_running_loop()
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

    async def build_and_put(
        self, sequence: int, on_built: Callable[[WalHeader], None]
    ) -> PutOutcome:
        """Have the object built for the first time, and put; return the outcome of the PUT.

        ``on_built`` gets the header, in a bucket when the PUT begins. Without it the object is not
        known to be built, and the call raises ``TierUnavailable`` while the worker is not there or
        has no room, ``ChainBroken``, other errors of the log's files if another try may help.
        """
        pending = self._pending[sequence]
        await self._building.acquire()
        is_building = True

        def note(header: WalHeader) -> None:
            nonlocal is_building
            is_building = False
            self._building.release()
            if not self._wal.is_local:
                pending.began_s = self._loop.time()
            pending.note_header(header)
            on_built(header)

        try:
            outcome = await self._build_and_put(pending, 1, note)
            # A chain without its header would wait for ever.
            assert pending.header is not None, "an object was put, and its header did not come"
            return outcome
        except ChainBroken:
            raise
        except (TidelogError, OSError):
            if pending.header is None:
                raise
            return PutOutcome.UNKNOWN  # The worker has ended. It will be asked again.
        finally:
            if is_building:
                self._building.release()

    async def put(self, sequence: int, attempt: int) -> PutOutcome:
        """Put the object once more by one request, built again if the worker does not have it.

        Raises ``ChainBroken``.
        """
        pending = self._pending[sequence]
        try:
            if self._wal.is_local:
                async with self._building:
                    return await self._build_and_put(pending, attempt, pending.note_header)
            timeout_s = put_timeout_s(pending.content.size_bytes, attempt)
            pending.began_s = self._loop.time()
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

    async def _build_up_to(self, sequence: int) -> None:
        """Have every object built again that was built, up to this one, in order."""
        async with self._building:
            for pending in [one for number, one in self._pending.items() if number <= sequence]:
                if pending.header is None:
                    continue
                try:
                    pending.note_header(await self._wal.build(self._request(pending)))
                except (TidelogError, OSError) as error:
                    _count_failure(pending, error)
                    raise

    async def _build_and_put(
        self, pending: PendingObject, attempt: int, on_built: Callable[[WalHeader], None]
    ) -> PutOutcome:
        # Nothing ends a local write that has begun: another one would only make both slower.
        timeout_s = (
            PUT_SECONDS_MAX
            if self._wal.is_local
            else put_timeout_s(pending.content.size_bytes, attempt)
        )
        pending.began_s = self._loop.time()
        is_asked = False
        try:
            request = self._request(pending)
            is_asked = True
            return await self._wal.build_and_put(request, timeout_s=timeout_s, on_built=on_built)
        except (TidelogError, OSError) as error:
            if is_asked and not isinstance(error, NOTHING_PUT):
                pending.may_be_put = True
            _count_failure(pending, error)
            raise

    def _request(self, pending: PendingObject) -> WalBuildRequest:
        """Return the request to build the object from where the logs have its records now.

        Raises ``ChainBroken`` if it may have been put, and would be built from other parts.
        """
        content, built = pending.content, pending.built
        slices = tuple(self._slices_of(content))
        parts = tuple(one._replace(ranges=()) for one in slices)
        if pending.header is None and not pending.may_be_put:
            pending.slices, pending.references = parts, self._references_of(content)
        elif parts != pending.slices:
            raise pending.changed()
        name = ObjectName(
            self._wal.cluster_id,
            self._wal.chain,
            built.sequence,
            built.committed_end,
            built.previous_crc,
            pending.created_ms,
        )
        return WalBuildRequest(name, slices, content.epochs, pending.references)


def _count_failure(pending: PendingObject, error: Exception) -> None:
    """Count a failed build. Raises ``ChainBroken`` if there were too many."""
    if isinstance(error, ChainBroken | TierUnavailable | StoreUnavailable):
        return  # It says all, or the logs are not to blame.
    pending.failures += 1
    if pending.failures >= BUILD_FAILURES_MAX:
        raise ChainBroken(f"object {pending.built.sequence}: {error}") from error


def put_timeout_s(size_bytes: int, attempt: int) -> float:
    """Return how long to wait for the answer to a PUT: longer with each one that had none.

    On a slow line eight objects at once take longer than one, and some attempt must have the time.
    """
    first_s = PUT_SECONDS + size_bytes / PUT_BYTES_PER_SECOND_MIN
    return min(first_s * 2.0 ** min(attempt - 1, 8), PUT_SECONDS_MAX)
