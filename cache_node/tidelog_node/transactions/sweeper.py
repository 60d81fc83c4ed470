"""Aborts transactions that are open for too long, and forgets transactional ids that are unused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from tidelog_core.errors import TidelogError

from tidelog_node.node_context import NodeContext
from tidelog_node.transactions import state
from tidelog_node.transactions.hosted_transactions import HostedTransactions
from tidelog_node.transactions.loaded_transaction import LoadedTransaction, Unloaded
from tidelog_node.transactions.transaction_shard import TransactionShard

logger = logging.getLogger(__name__)


class TransactionSweeper:
    """Checks the transactions of this node's shards at intervals."""

    def __init__(self, node: NodeContext, hosted: HostedTransactions) -> None:
        self._node = node
        self._hosted = hosted

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with asyncio.TaskGroup() as sweeps:
            sweeps.create_task(self._abort_forever())
            sweeps.create_task(self._expire_forever())

    async def _abort_forever(self) -> None:
        while True:
            config = self._node.config()
            interval_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self._abort_timed_out()
            except Exception:
                logger.exception("timed out transactions are not aborted, will retry")

    async def _abort_timed_out(self) -> None:
        """Abort transactions that are open beyond their time-out; end prepared ones left over."""
        shards = await self._loaded_shards()
        for shard in shards:
            await shard.reload_stale()
        due = self._hosted.timing_out.take(self._node.clock_ms()) if shards else []
        try:
            for loaded in due:
                await self._attempt(loaded, self._time_out(loaded))
        finally:
            for loaded in due:
                self._hosted.note_time_out(loaded)  # An open one gets another time-out.

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
                await self._expire_unused()
            except Exception:
                logger.exception("transactional ids are not expired, will retry")

    async def _expire_unused(self) -> None:
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
                    await self._attempt(loaded, expiring)

    async def _loaded_shards(self) -> list[TransactionShard]:
        found = []
        for shard in self._hosted.shards():
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

    async def _attempt(self, loaded: LoadedTransaction, work: Awaitable[object]) -> None:
        try:
            await work
        except Unloaded:
            pass
        except TidelogError as error:
            logger.warning(
                "transaction could not be cleaned up",
                extra={"transactional_id": loaded.transactional_id, "reason": str(error)},
            )
