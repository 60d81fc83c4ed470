"""Ends prepared transactions: delivers the markers to every partition, then stores the end.

The change to a prepared state is the outcome of a transaction. Whoever coordinates it from then on
begins here, so a transaction that a coordinator leaves unended is ended by the next one.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog_core.errors import OutcomeUnknown, TidelogError, VersionConflict
from tidelog_core.metadata.coordination.transactions import TransactionRecord, TransactionState

from tidelog_node.node_context import NodeContext
from tidelog_node.transactions import state
from tidelog_node.transactions.loaded_transaction import LoadedTransaction, Unloaded
from tidelog_node.transactions.markers import Marker, MarkerFenced, MarkerSender
from tidelog_node.transactions.state import Decision
from tidelog_node.transactions.transaction_shard import TransactionShard

logger = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 0.5


class TransactionEndings:
    """The transactions that are being ended, a task for each. For one event loop."""

    def __init__(self, node: NodeContext, markers: MarkerSender) -> None:
        self._node = node
        self._markers = markers
        self._tasks: dict[LoadedTransaction, asyncio.Task[None]] = {}

    def begin_if_prepared(self, shard: TransactionShard, loaded: LoadedTransaction) -> None:
        """Begin to end the transaction if it is prepared, and not being ended yet."""
        record = loaded.record
        is_prepared = record is not None and record.state.is_prepared
        if loaded in self._tasks or shard.is_closed or loaded.is_unloaded or not is_prepared:
            return
        assert record is not None
        task = asyncio.create_task(self._end(shard, loaded, record))
        self._tasks[loaded] = task
        task.add_done_callback(lambda _: self._on_ended(shard, loaded))

    def cancel(self, loaded: LoadedTransaction) -> None:
        """Stop ending the transaction, if it is being ended."""
        task = self._tasks.get(loaded)
        if task is not None:
            task.cancel()

    def is_caller(self, loaded: LoadedTransaction) -> bool:
        """Return whether the running task is the one that ends the transaction."""
        task = self._tasks.get(loaded)
        return task is not None and task is asyncio.current_task()

    async def wait(self, loaded: LoadedTransaction, seconds_max: float) -> None:
        """Wait a while for the end of the transaction, if it is being ended."""
        task = self._tasks.get(loaded)
        if task is not None:
            await asyncio.wait((task,), timeout=seconds_max)

    async def close(self) -> None:
        """Wait for the tasks. Their shards must be closed: that has cancelled them."""
        await asyncio.gather(*tuple(self._tasks.values()), return_exceptions=True)
        await self._markers.close()

    def _on_ended(self, shard: TransactionShard, loaded: LoadedTransaction) -> None:
        task = self._tasks.pop(loaded)
        if task.cancelled():
            return
        if task.exception() is not None:
            logger.error(
                "transaction could not be ended, will retry",
                extra={"transactional_id": loaded.transactional_id},
                exc_info=task.exception(),
            )
            loaded.unload()
        # Another transaction of the id may have been prepared before this task ended.
        self.begin_if_prepared(shard, loaded)

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
