"""Allocates producer ids from blocks that are reserved in the metadata store.

The unused rest of a block is lost when the node stops; there are 2**63 ids.
Source: ``ProducerIdManager`` of Kafka.
"""

from __future__ import annotations

import asyncio

from tidelog_core.metadata.records import PRODUCER_ID_COUNTER
from tidelog_core.metadata.store import MetadataStore

PRODUCER_ID_BLOCK = 1000  # Kafka's size


class ProducerIds:
    """Allocates unique ids. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._next_id = 0
        self._end_id = 0  # exclusive

    async def take(self) -> int:
        """Return an unused id. Raises ``StoreUnavailable``, ``OutcomeUnknown``."""
        async with self._lock:
            if self._next_id == self._end_id:
                end_id = await self._store.increment(PRODUCER_ID_COUNTER, PRODUCER_ID_BLOCK)
                self._next_id, self._end_id = end_id - PRODUCER_ID_BLOCK, end_id
            producer_id = self._next_id
            self._next_id += 1
            return producer_id
