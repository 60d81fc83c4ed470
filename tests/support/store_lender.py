"""Lends ranges of any object store's objects, and spoils them once they are released.

Who reads a range after that reads other bytes, as where the memory has been lent again.
"""

from __future__ import annotations

from tidelog_core.objects.store import ObjectStore
from tidelog_node.tier.lent_memory import LentMemory
from tidelog_node.tier.lent_ranges import LentRange


class SpoiledRange(LentRange):
    """A range that is overwritten at its release."""

    def release(self) -> None:
        """End the loan."""
        try:
            self.data[:] = b"\xaa" * len(self.data)
        except ValueError:  # It was released before.
            return
        super().release()


class StoreLender:
    """A ``RangeLender`` over a store of this process."""

    def __init__(self, store: ObjectStore, memory: LentMemory | None = None) -> None:
        """Without ``memory`` there is always room."""
        self._store = store
        self._memory = memory

    async def lend(self, key: str, start: int, end: int) -> LentRange:
        """Return bytes ``[start, end)`` of the object."""
        return SpoiledRange(memoryview(bytearray(await self._store.get_range(key, start, end))))

    async def lend_in_turn(self, key: str, start: int, end: int) -> LentRange:
        """Return bytes ``[start, end)`` of the object, once there is room."""
        if self._memory is None:
            return await self.lend(key, start, end)
        loan = await self._memory.lend_in_turn(end - start)
        try:
            data = await self._store.get_range(key, start, end)
        except BaseException:
            loan.give_back()
            raise
        view = loan.view[: len(data)]
        view[:] = data
        return SpoiledRange(view, loan)
