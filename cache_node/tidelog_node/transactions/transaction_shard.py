"""The transactional ids of one shard, while this node coordinates it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptItem, TidelogError
from tidelog_core.metadata.coordination.transactions import (
    TransactionRecord,
    transaction_collection,
    transaction_key,
)
from tidelog_core.metadata.store import Item, MetadataStore

from tidelog_node.coordinator.led_shards import Leadership, LedShard
from tidelog_node.transactions.loaded_transaction import LoadedTransaction, Unloaded
from tidelog_node.transactions.state import IDLE

logger = logging.getLogger(__name__)

CLAIMS_AT_ONCE = 16


class TransactionShard(LedShard):
    """Loads the shard once, and again each id that was unloaded.

    An open or prepared transaction is claimed before its state is used in an answer: an earlier
    coordinator may be about to change it.
    """

    kind = "transaction"

    def __init__(
        self,
        index: int,
        leadership: Leadership,
        store: MetadataStore,
        *,
        host: Callable[[TransactionShard, str, TransactionRecord | None], LoadedTransaction],
    ) -> None:
        super().__init__(index, leadership, store)
        self.transactions: dict[str, LoadedTransaction] = {}
        self._host = host
        self._stale: set[str] = set()  # ids that may be in the store but are not in memory

    @property
    def coordinator_epoch(self) -> int:
        """The epoch in this coordinator's markers; partitions refuse markers with an older one."""
        return self.leadership.leader_epoch

    async def find(self, transactional_id: str) -> LoadedTransaction:
        """Return the id's transaction, an empty one for an unknown id."""
        await self.loaded()
        if transactional_id in self._stale:
            key = transaction_key(self.index, transactional_id)
            item = await self._store.get(key)
            self.check_open()
            # Another task may have loaded it during the read.
            if transactional_id in self._stale:
                record = None if item is None else TransactionRecord.from_item(item)
                self._stale.discard(transactional_id)
                self._take(transactional_id, record)
        found = self.transactions.get(transactional_id)
        return self._take(transactional_id, None) if found is None else found

    def forget(self, transaction: LoadedTransaction, *, is_stored: bool) -> None:
        """Drop a transaction; with ``is_stored`` its item is read when it is needed again."""
        transactional_id = transaction.transactional_id
        if self.transactions.get(transactional_id) is transaction:
            del self.transactions[transactional_id]
            if is_stored:
                self._stale.add(transactional_id)

    async def reload_stale(self) -> None:
        """Read unloaded ids again: their transactions may be prepared and must be ended."""
        for transactional_id in tuple(self._stale):
            try:
                found = await self.find(transactional_id)
                await found.claim()
                if found.is_vacant:
                    self.forget(found, is_stored=False)
            except (TidelogError, Unloaded) as error:
                logger.warning(
                    "transaction is not read again",
                    extra={"transactional_id": transactional_id, "reason": str(error)},
                )

    async def _unload_all(self) -> None:
        transactions = list(self.transactions.values())
        self.transactions.clear()
        for transaction in transactions:
            transaction.unload()
        for transaction in transactions:
            await transaction.close()

    def _take(self, transactional_id: str, record: TransactionRecord | None) -> LoadedTransaction:
        self.check_open()
        transaction = self._host(self, transactional_id, record)
        self.transactions[transactional_id] = transaction
        return transaction

    async def _read_all(self) -> None:
        try:
            items = await self._store.list(transaction_collection(self.index))
            records = [record for item in items if (record := self._read(item)) is not None]
            self.check_open()
            open_ones = [
                self._take(record.transactional_id, record)
                for record in records
                if record.state not in IDLE
            ]
            for record in records:
                if record.state in IDLE:
                    self._take(record.transactional_id, record)
            for some in batched(open_ones, CLAIMS_AT_ONCE):
                await asyncio.gather(*(self._claim(transaction) for transaction in some))
        except TidelogError:
            for transaction in tuple(self.transactions.values()):
                transaction.unload()
            self.transactions.clear()
            self._stale.clear()
            raise

    async def _claim(self, transaction: LoadedTransaction) -> None:
        """Claim it. After a write by an earlier coordinator it is unloaded and read later."""
        try:
            await transaction.claim()
        except Unloaded:
            pass
        except TidelogError:
            if not transaction.is_unloaded:
                raise

    def _read(self, item: Item) -> TransactionRecord | None:
        try:
            return TransactionRecord.from_item(item)
        except CorruptItem as error:
            # One corrupt item must not make the shard's other ids unavailable.
            logger.error("transaction cannot be loaded", extra={"reason": str(error)})
            self._stale.add(item.id.key)
            return None
