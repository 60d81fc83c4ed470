"""Puts a gateway's batches into the node's chain, and reports the committed ones.

The chain is opened with the first batch. If it ends, its uncommitted batches go into the next one:
nobody can have seen them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch
from tidelog_node.diskless.gateway.gateway_objects import GatewayObject, GatewayObjects
from tidelog_node.diskless.gateway.pending_batches import PendingBatches
from tidelog_node.diskless.gateway.spool import GatewaySpool
from tidelog_node.tier.wal_messages import FileRange

logger = logging.getLogger(__name__)

CANNOT_STORE = ErrorCode.not_leader_or_follower, "this node cannot write the object store"


class GatewayChain:
    """The chain as a gateway uses it. For the node's event loop."""

    def __init__(
        self,
        batches: PendingBatches,
        *,
        spool: GatewaySpool,
        objects: GatewayObjects,
        own_chain: Callable[[], Awaitable[OwnedChain]],
        on_committed: Callable[[Sequence[GatewayBatch]], None],
    ) -> None:
        """``own_chain`` raises the store's errors. ``on_committed`` gets batches in order."""
        self._batches = batches
        self._spool = spool
        self._objects = objects
        self._own_chain = own_chain
        self._committed = on_committed
        self._chain: OwnedChain | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unnoted: list[GatewayBatch] = []  # that wait for a chain
        self._given_up: dict[int, FileRange] = {}  # the chain may still build objects with them
        self._is_closed = False

    def note(self, batch: GatewayBatch) -> None:
        """Put the batch into the next object."""
        chain = self._chain
        if chain is not None and not self._unnoted:
            if chain.note_foreign(batch.number, batch.files):
                return
            if not chain.is_deposed:
                # Its request may not wait for it yet.
                stopping = ErrorCode.not_leader_or_follower, "this node is stopping"
                asyncio.get_running_loop().call_soon(self._batches.end, batch, *stopping)
                return
        self._unnoted.append(batch)
        self._open()

    def give_up(self, is_meant: Callable[[GatewayBatch], bool]) -> None:
        """Give batches that are not committed back to their producers.

        No leader has heard of them, so it is certain that none has appended them. The chain puts
        them all the same: they may be in an object that is under way.
        """
        unnoted = {one.number for one in self._unnoted}
        for one in self._batches:
            if one.gateway_object is not None or not is_meant(one):
                continue
            is_noted = one.number not in unnoted
            if is_noted:
                self._given_up[one.number] = one.place
            self._batches.lose(one, *CANNOT_STORE, keeps_place=is_noted)
        self._unnoted = [one for one in self._unnoted if one in self._batches]

    def on_deposed(self, chain: OwnedChain) -> None:
        """Put the chain's uncommitted batches into the next chain."""
        if chain is not self._chain:
            return
        for place in self._given_up.values():
            self._spool.release(place)
        self._given_up.clear()
        self._chain = None
        self._unnoted = [one for one in self._batches if one.gateway_object is None]
        self._open()

    def close(self) -> None:
        """Open no more chains."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()

    def _open(self) -> None:
        if self._opening is None and self._unnoted and not self._is_closed:
            self._opening = asyncio.create_task(self._open_chain(), name="gateway's chain")

    async def _open_chain(self) -> None:
        try:
            chain = await self._own_chain()
        except TidelogError as error:
            logger.warning("a gateway has no chain", extra={"reason": str(error)})
            unnoted, self._unnoted = self._unnoted, []
            for one in unnoted:
                self._batches.lose(one, error.code, str(error))
            return
        finally:
            self._opening = None
        if chain is not self._chain:
            self._chain = chain
            chain.foreign_committed.subscribe(partial(self._on_committed, chain))
        unnoted, self._unnoted = self._unnoted, []
        for one in unnoted:
            if one in self._batches:
                self.note(one)

    def _on_committed(
        self, chain: OwnedChain, sequence: int, placed: Sequence[tuple[int, int]]
    ) -> None:
        made = GatewayObject(chain, sequence, len(placed))
        found: list[GatewayBatch] = []
        for number, position in placed:
            one = self._batches.get(number)
            if one is None:  # Given up before: no leader will hear of it.
                if (place := self._given_up.pop(number, None)) is not None:
                    self._spool.release(place)
                self._objects.settle(made)
                continue
            self._spool.release(one.place)
            one.gateway_object, one.position = made, position
            found.append(one)
        self._committed(found)
