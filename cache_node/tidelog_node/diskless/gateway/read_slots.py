"""Limits the reads of gateways' objects on a leader, for each gateway and in all.

A request holds its slot, and the bytes that it has read, until it is its turn to be appended. So
without a limit of its own a gateway whose objects are slow to read would soon hold every slot. A
gateway that holds no slot always gets one, even if all are taken, so it waits for no other gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SLOTS_MAX = 16  # of all gateways, and one for each gateway that has none
OWN_SLOTS_MAX = 8


class ReadSlots:
    """The slots of one leader. For one event loop."""

    def __init__(self, slots_max: int = SLOTS_MAX, own_max: int = OWN_SLOTS_MAX) -> None:
        self._slots_max = slots_max
        self._own_max = own_max
        self._held: Counter[int] = Counter()  # by the gateway's broker id
        # By gateway, none empty; the gateway that got a slot last is the last one.
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, gateway: int) -> AsyncIterator[None]:
        """Wait for a slot, and hold it. The requests of a gateway get theirs in order."""
        await self._take(gateway)
        try:
            yield
        finally:
            self._give_back(gateway)

    async def _take(self, gateway: int) -> None:
        if gateway not in self._waiting and self._has_room(gateway):
            self._held[gateway] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(gateway, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(gateway)
            else:
                self._forget(gateway, turn)
            raise

    def _has_room(self, gateway: int) -> bool:
        held = self._held[gateway]
        return not held or (held < self._own_max and self._held.total() < self._slots_max)

    def _give_back(self, gateway: int) -> None:
        self._held[gateway] -= 1
        if not self._held[gateway]:
            del self._held[gateway]
        while self._wake_one():
            pass

    def _wake_one(self) -> bool:
        """Give a slot to the first gateway that may have one; return whether there was one."""
        for gateway, turns in self._waiting.items():
            if not self._has_room(gateway):
                continue
            turn = turns.popleft()
            del self._waiting[gateway]
            if turns:
                self._waiting[gateway] = turns
            if not turn.done():  # else its request is about to be told that it is cancelled
                self._held[gateway] += 1
                turn.set_result(None)
            return True
        return False

    def _forget(self, gateway: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(gateway)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[gateway]
