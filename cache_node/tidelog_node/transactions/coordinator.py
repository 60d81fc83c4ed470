"""The transaction coordinator of a node: finds transactional ids, changes them, ends them.

Every transactional id belongs to a shard, and every shard to the leader of one partition of
``__transaction_state``. While this node leads it, the shard's ids are in memory, and each change
is in the store before any client gets an answer. The change to a prepared state is the outcome of
the transaction: every later coordinator of the shard delivers the markers to all partitions, and
only then stores the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    OutcomeUnknown,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.transactions import (
    TransactionRecord,
    TransactionState,
    shard_of_transaction,
    transaction_key,
)
from tidelog_core.model import TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog_core.replication.heirs import wants_diskless

from tidelog_node.coordinator.led_shards import Leadership, LedShards
from tidelog_node.due_queue import DueQueue
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions import state
from tidelog_node.transactions.loaded_transaction import (
    LoadedTransaction,
    Unloaded,
    not_coordinator,
)
from tidelog_node.transactions.markers import Marker, MarkerFenced, MarkerSender
from tidelog_node.transactions.state import Decide, Decision, InitRequest
from tidelog_node.transactions.transaction_shard import TransactionShard

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIND_ATTEMPTS_MAX = 5
STORE_RETRY_SECONDS = 0.5
MARKERS_WAIT_SECONDS = 5.0  # of an EndTxn request, for markers in diskless partitions
TRANSACTIONAL_ID_SIZE_BYTES_MAX = 1000  # DynamoDB's sort keys have 1,024
# Codes that need no confirmation by the store: after CONCURRENT_TRANSACTIONS the client asks again,
# and the next marker voids a wrong «none».
NOT_FINAL = frozenset({ErrorCode.none, ErrorCode.concurrent_transactions})


class TransactionCoordinator:
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
        self._markers = markers
        self._shards = LedShards(
            node,
            TRANSACTION_STATE_TOPIC,
            open_shard=self._open_shard,
            on_drop=self._cancel_endings,
        )
        self._endings: dict[LoadedTransaction, asyncio.Task[None]] = {}
        # Open transactions by the wall-clock time of their time-out, kept by ``_changed``.
        self._timing_out: DueQueue[LoadedTransaction] = DueQueue()
        self._is_closed = False
        self._sweepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to coordinate the shards that this node leads by the cluster's image."""
        self._shards.start()
        self._sweepers = [
            asyncio.create_task(self._abort_forever()),
            asyncio.create_task(self._expire_forever()),
        ]

    async def close(self) -> None:
        """Finish the writes in progress, stop delivering markers. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._shards.stop()
        for sweeper in self._sweepers:
            sweeper.cancel()
        await asyncio.gather(*self._sweepers, return_exceptions=True)
        endings = tuple(self._endings.values())
        await self._shards.close()
        await asyncio.gather(*endings, return_exceptions=True)
        await self._markers.close()

    # -- requests of producers --

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> Decision:
        """Give the id to a producer, or answer INVALID_TRANSACTION_TIMEOUT or the state's error."""
        if not transactional_id:
            return Decision(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self._node.config().transaction_max_timeout_ms:
            return Decision(ErrorCode.invalid_transaction_timeout)
        request = InitRequest(
            self._shard_of(transactional_id).index, transactional_id, timeout_ms, expected
        )
        return await self._apply(
            transactional_id,
            lambda record, fresh_id: state.init_producer_id(
                record, request, now_ms=self._node.clock_ms(), fresh_id=fresh_id
            ),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
    ) -> ErrorCode:
        """Make the partitions part of the transaction. Durable on return of ``none``."""
        if not transactional_id:
            return ErrorCode.invalid_request
        decision = await self._apply(
            transactional_id,
            lambda record, _: state.add_partitions(
                record,
                producer_id,
                producer_epoch,
                partitions,
                client_version=client_version,
                now_ms=self._node.clock_ms(),
            ),
        )
        return decision.error

    async def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return whether each partition is part of the open transaction."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.invalid_request)

        async def verify(loaded: LoadedTransaction) -> dict[TopicPartition, ErrorCode]:
            given = producer_id, producer_epoch, partitions
            codes = state.verify_partitions(await loaded.claim(), *given)
            if any(code not in NOT_FINAL for code in codes.values()):
                # Not part of a transaction, it may be of one that another node has begun.
                codes = state.verify_partitions(await loaded.confirm(), *given)
            return codes

        return await self._use(transactional_id, verify)

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        client_version: int,
    ) -> Decision:
        """Commit or abort. On return of ``none`` the outcome is durable; markers follow later.

        In diskless partitions they are stored too: if all nodes and the metadata store are lost,
        the bucket has the outcome. ``concurrent_transactions`` if that takes long: ask again.
        """
        if not transactional_id:
            return Decision(ErrorCode.invalid_request)

        def decide(record: TransactionRecord | None, fresh_id: int | None) -> Decision:
            return state.end_transaction(
                record,
                producer_id,
                producer_epoch,
                is_commit=is_commit,
                client_version=client_version,
                now_ms=self._node.clock_ms(),
                fresh_id=fresh_id,
            )

        async def end(loaded: LoadedTransaction) -> Decision:
            decision = await loaded.apply(decide)
            if decision.after is None or not self._has_diskless(decision.after):
                return decision
            if await self._has_ended(loaded):
                return decision
            return Decision(ErrorCode.concurrent_transactions)

        return await self._use(transactional_id, end)

    def _has_diskless(self, record: TransactionRecord) -> bool:
        image = self._node.view.image
        return any(
            (topic := image.topics.get(partition.topic)) is not None
            and (wants_diskless(topic) or _is_diskless(image, partition))
            for partition in record.partitions
        )

    async def _has_ended(self, loaded: LoadedTransaction) -> bool:
        """Wait a while until every partition has its marker; return whether that is so."""
        ending = self._endings.get(loaded)
        if ending is not None:
            await asyncio.wait((ending,), timeout=MARKERS_WAIT_SECONDS)
        record = loaded.record
        return not loaded.is_unloaded and record is not None and not record.state.is_prepared

    # -- requests of administrators --

    async def describe(self, transactional_id: str) -> TransactionRecord | None:
        """Return the id's record, ``None`` for an unknown id."""
        if not transactional_id:
            raise InvalidRequest("a transactional id is not empty")
        return await self._use(transactional_id, lambda loaded: loaded.claim())

    async def list_transactions(self) -> list[TransactionRecord]:
        """Return the record of every id that this node coordinates."""
        self._require_serving()
        self._shards.follow(self._node.view.image)
        shards = tuple(self._shards)
        for shard in shards:
            await shard.loaded()
        return [
            loaded.record
            for shard in shards
            for loaded in shard.transactions.values()
            if loaded.record is not None
        ]

    def loaded(self) -> list[TransactionRecord]:
        """Return the records that are in memory just now, without waiting for others."""
        return [
            loaded.record
            for shard in self._shards
            for loaded in shard.transactions.values()
            if loaded.record is not None
        ]

    # -- finding ids --

    async def _apply(self, transactional_id: str, decide: Decide) -> Decision:
        return await self._use(transactional_id, lambda loaded: loaded.apply(decide))

    async def _use(
        self, transactional_id: str, use: Callable[[LoadedTransaction], Awaitable[T]]
    ) -> T:
        for _ in range(FIND_ATTEMPTS_MAX):
            shard = self._shard_of(transactional_id)
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

    def _require_serving(self) -> None:
        if not self._node.membership.can_serve():
            # Another node may coordinate the id by now without this one having noticed.
            raise NotCoordinator("this node's lease has lapsed")

    def _shard_of(self, transactional_id: str) -> TransactionShard:
        if len(transactional_id.encode()) > TRANSACTIONAL_ID_SIZE_BYTES_MAX:
            raise InvalidRequest(
                f"a transactional id has at most {TRANSACTIONAL_ID_SIZE_BYTES_MAX} bytes"
            )
        self._require_serving()
        shard = self._shards.find(lambda count: shard_of_transaction(transactional_id, count))
        if shard is None:
            raise not_coordinator(transactional_id)
        return shard

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
            on_change=lambda loaded: self._changed(shard, loaded),
        )
        self._note_time_out(loaded)
        return loaded

    def _note_time_out(self, loaded: LoadedTransaction) -> None:
        due_ms = None if loaded.record is None else state.times_out_ms(loaded.record)
        if due_ms is None or loaded.is_unloaded:
            self._timing_out.discard(loaded)
        else:
            self._timing_out.put(loaded, due_ms)

    def _cancel_endings(self, shard: TransactionShard) -> None:
        for loaded in shard.transactions.values():
            if (ending := self._endings.get(loaded)) is not None:
                ending.cancel()

    def _changed(self, shard: TransactionShard, loaded: LoadedTransaction) -> None:
        record = loaded.record
        self._note_time_out(loaded)
        if loaded.is_unloaded:
            shard.forget(loaded, is_stored=not loaded.is_deleted)
            ending = self._endings.get(loaded)
            if ending is not None and ending is not asyncio.current_task():
                ending.cancel()
            return
        is_idle = loaded not in self._endings and not shard.is_closed
        if is_idle and record is not None and record.state.is_prepared:
            ending = asyncio.create_task(self._end(shard, loaded, record))
            self._endings[loaded] = ending
            ending.add_done_callback(lambda _: self._ended(shard, loaded))

    def _ended(self, shard: TransactionShard, loaded: LoadedTransaction) -> None:
        ending = self._endings.pop(loaded)
        if ending.cancelled():
            return
        if ending.exception() is not None:
            logger.error(
                "transaction could not be ended, will retry",
                extra={"transactional_id": loaded.transactional_id},
                exc_info=ending.exception(),
            )
            loaded.unload()
        # Another transaction of the id may have been prepared before this task ended.
        self._changed(shard, loaded)

    # -- ending transactions --

    async def _end(
        self, shard: TransactionShard, loaded: LoadedTransaction, record: TransactionRecord
    ) -> None:
        """Deliver the markers to every partition, then store the end."""
        marker = Marker(
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            is_commit=record.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=shard.coordinator_epoch,
            partitions=record.partitions,
        )
        try:
            await self._markers.deliver(
                marker, may_send=lambda: not shard.is_closed and self._node.membership.can_serve()
            )
        except MarkerFenced as fenced:
            logger.warning(
                "another coordinator ends the transaction",
                extra={"transactional_id": loaded.transactional_id, "reason": str(fenced)},
            )
            loaded.unload()
            return

        def complete(current: TransactionRecord | None, _: int | None) -> Decision:
            if current != record or current is None:
                return Decision()
            return Decision(after=state.complete(current, now_ms=self._node.clock_ms()))

        while True:
            try:
                await loaded.apply(complete)
                return
            except (Unloaded, VersionConflict, OutcomeUnknown):
                return  # The next one to read the item continues from there.
            except TidelogError as error:
                logger.warning(
                    "end of a transaction could not be stored, will retry",
                    extra={"transactional_id": loaded.transactional_id, "reason": str(error)},
                )
                await asyncio.sleep(STORE_RETRY_SECONDS)

    # -- time-outs and expiration --

    async def _abort_forever(self) -> None:
        while True:
            config = self._node.config()
            interval_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.abort_timed_out()
            except Exception:
                logger.exception("timed out transactions are not aborted, will retry")

    async def abort_timed_out(self) -> None:
        """Abort transactions that are open beyond their time-out; end prepared ones left over."""
        shards = await self._loaded_shards()
        for shard in shards:
            await shard.reload_stale()
        due = self._timing_out.take(self._node.clock_ms()) if shards else []
        try:
            for loaded in due:
                await self._sweep(loaded, self._time_out(loaded))
        finally:
            for loaded in due:
                self._note_time_out(loaded)  # An open one gets another time-out.

    async def _time_out(self, loaded: LoadedTransaction) -> None:
        decision = await loaded.apply(
            lambda record, _: state.time_out(record, now_ms=self._node.clock_ms())
        )
        if decision.after is not None:
            logger.info(
                "transaction timed out and is aborted",
                extra={
                    "transactional_id": loaded.transactional_id,
                    "producer_id": decision.after.producer_id,
                },
            )

    async def _expire_forever(self) -> None:
        while True:
            config = self._node.config()
            interval_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.expire_unused()
            except Exception:
                logger.exception("transactional ids are not expired, will retry")

    async def expire_unused(self) -> None:
        """Forget ids that were unused for ``transactional.id.expiration.ms``."""
        if not self._node.may_expire():
            return
        expiration_ms = self._node.config().transactional_id_expiration_ms
        for shard in await self._loaded_shards():
            for loaded in tuple(shard.transactions.values()):
                record, now_ms = loaded.record, self._node.clock_ms()
                if record is not None and state.is_expired(
                    record, now_ms=now_ms, expiration_ms=expiration_ms
                ):
                    expiring = loaded.expire(now_ms=now_ms, expiration_ms=expiration_ms)
                    await self._sweep(loaded, expiring)

    async def _loaded_shards(self) -> list[TransactionShard]:
        found = []
        for shard in self._shards if self._node.membership.can_serve() else ():
            try:
                await shard.loaded()
            except TidelogError as error:
                logger.warning(
                    "transactions are not loaded",
                    extra={"shard": shard.index, "reason": str(error)},
                )
            else:
                found.append(shard)
        return found

    async def _sweep(self, loaded: LoadedTransaction, work: Awaitable[object]) -> None:
        try:
            await work
        except Unloaded:
            pass
        except TidelogError as error:
            logger.warning(
                "transaction could not be cleaned up",
                extra={"transactional_id": loaded.transactional_id, "reason": str(error)},
            )


def _is_diskless(image: ClusterImage, name: TopicPartition) -> bool:
    partition = image.partition(name)
    return partition is not None and partition.is_diskless
