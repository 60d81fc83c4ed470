"""The erasure requests of one kind, as last read from the metadata store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.store import Item, MetadataStore

logger = logging.getLogger(__name__)

READ_SECONDS = 60.0  # all requests are read again: a view that was far behind gets no changes

R = TypeVar("R")


class StoredRequests(Generic[R]):
    """Reads a collection again after changes, and now and then. For one event loop."""

    def __init__(self, store: MetadataStore, collection: str, parse: Callable[[Item], R]) -> None:
        self._store = store
        self._collection = collection
        self._parse = parse
        self._requests: tuple[R, ...] = ()
        self._is_stale = True
        self._read_at = 0.0  # the loop's time

    def __iter__(self) -> Iterator[R]:
        """Iterate over the requests that were read last."""
        return iter(self._requests)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._requests)

    def note_change(self) -> None:
        """Read the requests again at the next ``refresh``."""
        self._is_stale = True

    async def refresh(self) -> None:
        """Read the requests if they may have changed; a failure is logged and retried."""
        now = asyncio.get_running_loop().time()
        if not self._is_stale and now - self._read_at <= READ_SECONDS:
            return
        self._is_stale, self._read_at = False, now
        try:
            items = await self._store.list(self._collection)
            self._requests = tuple(map(self._parse, items))
        except TidelogError as error:
            self._is_stale = True
            logger.warning(
                "erasures not read, will retry",
                extra={"collection": self._collection, "reason": str(error)},
            )
