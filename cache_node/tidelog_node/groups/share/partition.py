"""A share partition that this node leads: its state, item, deadlines and waiting fetches.

The state changes at once and is stored afterwards: an acknowledgement is answered once a write has
stored it (``saved``). Changes within a few milliseconds, or during a write, share one. A failed
write ends this object, because the store may then hold another state: the next user reads it
again, and acquired records are available again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from tidelog_core.errors import (
    NotLeaderOrFollower,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.coordination.share_partitions import SharePartitionRecord
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.groups.share.state import SharePartitionState
from tidelog_node.replicas.replica import Replica, ReplicaWaiter

logger = logging.getLogger(__name__)

SAVE_LINGER_SECONDS = 0.003  # a write costs the same for any number of acknowledgements
STORE_ATTEMPTS_MAX = 10
STORE_RETRY_SECONDS = 0.2


class SharePartition:
    """One share partition during one leader term. For the tasks of one event loop."""

    def __init__(
        self,
        record: SharePartitionRecord,
        state: SharePartitionState,
        replica: Replica,
        *,
        store: MetadataStore,
        on_end: Callable[[SharePartition], None],
    ) -> None:
        """``record`` is the stored one; ``on_end`` is called once the object must not be used."""
        self.state = state
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.waiters: dict[ReplicaWaiter, None] = {}  # in the order of arrival
        self.members: set[str] = set()  # with a session that has the partition
        self.is_reading = False  # from the tier; only one read at a time
        self.problem: TidelogError | None = None  # why this is not used any more
        self._record = record
        self._store = store
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.Future[None] | None = None  # done by the write after the current one
        self._writer: asyncio.Task[None] | None = None

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self._record.group_id

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._writer is not None

    def now_ms(self) -> int:
        """Return the time of the clock that ends acquisitions."""
        return int(self._loop.time() * 1000)

    def changed(self, *, wakes: bool = True) -> None:
        """Store the changed state, set the timer for its deadlines, wake waiting requests."""
        if self.problem is not None:
            return
        if not self._is_stored:
            self._write_soon()
        self._set_timer()
        if wakes:
            self.wake()
        self._end_if_idle()

    async def saved(self) -> None:
        """Return once all changes so far are stored. Durable on return.

        Raises ``NotLeaderOrFollower`` if another writer has changed the item, and the store's
        errors; the outcome is then unknown.
        """
        if self.problem is not None:
            raise self.problem.with_traceback(None)
        if self._writer is None and self._is_stored:
            return
        await asyncio.shield(self._write_soon())

    def leave(self, member_id: str) -> None:
        """Note that the member's session no longer has the partition."""
        self.members.discard(member_id)
        self._end_if_idle()

    def wake(self) -> None:
        """Have all waiting requests read again."""
        for waiter in tuple(self.waiters):
            waiter.wake()

    def end(self, problem: TidelogError) -> None:
        """Forbid further use. Idempotent. A running write is finished."""
        if self.problem is not None:
            return
        self.problem = problem
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(self)
        self.wake()

    async def close(self) -> None:
        """Wait for the running write."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    @property
    def _is_stored(self) -> bool:
        return self.state.stored() == (self._record.start_offset, self._record.batches)

    def _end_if_idle(self) -> None:
        """End the object if nothing uses it: the store has its whole state."""
        is_idle = self._writer is None and not self.members and not self.waiters
        if is_idle and not self.is_reading and self.state.next_deadline_ms is None:
            self.end(NotLeaderOrFollower("the share partition was unused"))

    # -- deadlines --

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.state.next_deadline_ms
        if deadline_ms is not None:
            self._timer = self._loop.call_at(deadline_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # The loop may call early, by up to its clock's resolution.
        self.state.expire(self.now_ms() + 1)
        self.changed()

    # -- storing --

    def _write_soon(self) -> asyncio.Future[None]:
        if self._next is None:
            self._next = self._loop.create_future()
            self._next.add_done_callback(_retrieve)
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        return self._next

    async def _write(self) -> None:
        await asyncio.sleep(SAVE_LINGER_SECONDS)
        while self._next is not None and self.problem is None:
            done, self._next = self._next, None
            try:
                if not self._is_stored:
                    await self._put()
            except TidelogError as error:
                self.end(_answered_error(error))
                done.set_exception(_answered_error(error))
            except Exception as error:
                logger.exception("share partition could not be stored")
                self.end(OutcomeUnknown(str(error)))
                done.set_exception(OutcomeUnknown(str(error)))
            else:
                done.set_result(None)
        self._writer = None
        if self._next is not None:
            assert self.problem is not None
            self._next.set_exception(self.problem)
            self._next = None
        if self.problem is None:
            self._end_if_idle()

    async def _put(self) -> None:
        start_offset, batches = self.state.stored()
        record = dataclasses.replace(self._record, start_offset=start_offset, batches=batches)
        self._record = await store_record(self._store, record)


async def store_record(store: MetadataStore, record: SharePartitionRecord) -> SharePartitionRecord:
    """Write the record if its item is unchanged since it was read; return it at its new version.

    Retries while the store is unavailable, and reads the item after an unknown outcome. Raises
    ``VersionConflict``, ``StoreUnavailable``, ``OutcomeUnknown``.
    """
    after = dataclasses.replace(record, version=record.version + 1)
    for attempt in range(1, STORE_ATTEMPTS_MAX + 1):
        try:
            await store.commit([put(record, is_logged=False)])
        except StoreUnavailable:
            if attempt == STORE_ATTEMPTS_MAX:
                raise
            await asyncio.sleep(STORE_RETRY_SECONDS)
        except OutcomeUnknown:
            if attempt == STORE_ATTEMPTS_MAX:
                raise
            item = await store.get(record.item_id)
            if item is not None and item.version == after.version and item.body == after.to_body():
                break
        else:
            break
    return after


def _answered_error(error: TidelogError) -> TidelogError:
    """Return the client's error for a failed write."""
    if isinstance(error, VersionConflict):
        # As in Kafka: the client looks for the leader, and fetches again.
        return NotLeaderOrFollower("the share partition's state was changed elsewhere")
    return error


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # the waiting request may have been cancelled
