"""The transactional ids that a node coordinates: finds and loads them, notes when they are due.

Every transactional id belongs to a shard, and every shard to the leader of one partition of
``__transaction_state``. While this node leads it, the shard's ids are in memory, and each change
is in the store before any client gets an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidelog_core.due_queue import DueQueue
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    VersionConflict,
)
from tidelog_core.metadata.coordination.transactions import (
    TransactionRecord,
    shard_of_transaction,
    transaction_key,
)
from tidelog_core.model import TRANSACTION_STATE_TOPIC

from tidelog_node.coordinator.led_shards import Leadership, LedShards
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions import state
from tidelog_node.transactions.endings import TransactionEndings
from tidelog_node.transactions.loaded_transaction import (
    LoadedTransaction,
    Unloaded,
    not_coordinator,
)
from tidelog_node.transactions.markers import MarkerSender
from tidelog_node.transactions.transaction_shard import TransactionShard

T = TypeVar("T")

FIND_ATTEMPTS_MAX = 5
TRANSACTIONAL_ID_SIZE_BYTES_MAX = 1000  # DynamoDB's sort keys have 1,024


class HostedTransactions:
    """Every transactional id that this node coordinates. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        take_producer_id: Callable[[], Awaitable[int]],
        markers: MarkerSender,
    ) -> None:
        self._node = node
        self._take_producer_id = take_producer_id
        self.endings = TransactionEndings(node, markers)
        self._shards = LedShards(
            node,
            TRANSACTION_STATE_TOPIC,
            open_shard=self._open_shard,
            on_drop=self._cancel_endings,
        )
        # Open transactions by the wall-clock time of their time-out, kept by ``_on_change``.
        self.timing_out: DueQueue[LoadedTransaction] = DueQueue()

    def start(self) -> None:
        """Begin to coordinate the shards that this node leads by the cluster's image."""
        self._shards.start()

    def stop(self) -> None:
        """Take over no more shards."""
        self._shards.stop()

    async def close(self) -> None:
        """Finish the writes in progress, stop delivering markers."""
        await self._shards.close()
        await self.endings.close()

    async def use(
        self, transactional_id: str, use: Callable[[LoadedTransaction], Awaitable[T]]
    ) -> T:
        """Return the result of ``use`` for the id's transaction, an empty one for an unknown id."""
        for _ in range(FIND_ATTEMPTS_MAX):
            shard = self.shard_of(transactional_id)
            loaded = await shard.find(transactional_id)
            try:
                result = await use(loaded)
            except Unloaded:
                continue
            except VersionConflict:
                # Another node has written the item; most probably it coordinates the id now.
                await self._node.view.refresh()
                raise
            finally:
                if loaded.is_vacant:
                    shard.forget(loaded, is_stored=False)
            # The record may be out of date if the lease has lapsed since it was read.
            self._require_serving()
            shard.check_open()
            return result
        raise CoordinatorNotAvailable(f"transactional id {transactional_id!r} keeps being unloaded")

    def shard_of(self, transactional_id: str) -> TransactionShard:
        """Return the id's shard. Raises ``NotCoordinator`` if another node leads it."""
        size_bytes = len(transactional_id.encode())
        if size_bytes > TRANSACTIONAL_ID_SIZE_BYTES_MAX:
            raise InvalidRequest(
                f"a transactional id has at most {TRANSACTIONAL_ID_SIZE_BYTES_MAX} bytes,"
                f" not {size_bytes}"
            )
        self._require_serving()
        shard = self._shards.find(lambda count: shard_of_transaction(transactional_id, count))
        if shard is None:
            raise not_coordinator(transactional_id)
        return shard

    def shards(self) -> tuple[TransactionShard, ...]:
        """Return the shards that this node may coordinate now; they may not be loaded yet."""
        if not self._node.membership.can_serve():
            return ()
        return tuple(self._shards)

    async def all(self) -> list[TransactionRecord]:
        """Return the record of every id that this node coordinates."""
        self._require_serving()
        self._shards.follow(self._node.view.image)
        shards = tuple(self._shards)
        for shard in shards:
            await shard.loaded()
        return _records_of(shards)

    def loaded(self) -> list[TransactionRecord]:
        """Return the records that are in memory just now, without waiting for others."""
        return _records_of(self._shards)

    def note_time_out(self, loaded: LoadedTransaction) -> None:
        """Note when the transaction times out, if it is open."""
        due_ms = None if loaded.record is None else state.times_out_ms(loaded.record)
        if due_ms is None or loaded.is_unloaded:
            self.timing_out.discard(loaded)
        else:
            self.timing_out.put(loaded, due_ms)

    def _require_serving(self) -> None:
        if not self._node.membership.can_serve():
            # Another node may coordinate the id by now without this one having noticed.
            raise NotCoordinator("this node's lease has lapsed")

    # -- shards and transactions that come and go --

    def _open_shard(self, index: int, leadership: Leadership) -> TransactionShard:
        return TransactionShard(index, leadership, self._node.store, host=self._host)

    def _host(
        self, shard: TransactionShard, transactional_id: str, record: TransactionRecord | None
    ) -> LoadedTransaction:
        loaded = LoadedTransaction(
            transaction_key(shard.index, transactional_id),
            record,
            store=self._node.store,
            take_producer_id=self._take_producer_id,
            on_change=lambda loaded: self._on_change(shard, loaded),
        )
        self.note_time_out(loaded)
        return loaded

    def _on_change(self, shard: TransactionShard, loaded: LoadedTransaction) -> None:
        self.note_time_out(loaded)
        if loaded.is_unloaded:
            shard.forget(loaded, is_stored=not loaded.is_deleted)
            if not self.endings.is_caller(loaded):
                self.endings.cancel(loaded)
        else:
            self.endings.begin_if_prepared(shard, loaded)

    def _cancel_endings(self, shard: TransactionShard) -> None:
        for loaded in shard.transactions.values():
            self.endings.cancel(loaded)


def _records_of(shards: Iterable[TransactionShard]) -> list[TransactionRecord]:
    return [
        loaded.record
        for shard in shards
        for loaded in shard.transactions.values()
        if loaded.record is not None
    ]
