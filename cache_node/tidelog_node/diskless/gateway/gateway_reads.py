"""A leader's reads of gateways' objects: limited in time, and repeated if they take long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog_core.errors import CorruptObject, NotLeaderOrFollower, ObjectNotFound, TidelogError

from tidelog_node.counters import GatewayTraffic
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_places

READ_SECONDS_MAX = 10.0
HEDGE_PART = 3.0  # a read that takes so many times the usual one is sent once more
HEDGE_SECONDS_MIN = 0.05
USUAL_SECONDS = 0.05  # at first
USUAL_WEIGHT = 0.05  # of each read in the average
RETRY_SECONDS = 0.1


class GatewayReads:
    """Reads slices of committed objects. For the node's event loop."""

    def __init__(self, traffic: GatewayTraffic) -> None:
        self.read_range: RangeReader | None = None  # None: nothing is led yet
        self._traffic = traffic
        self._usual_s = USUAL_SECONDS  # the average time of a read

    async def read(self, key: str, places: Sequence[SlicePlace]) -> list[bytearray]:
        """Return the bytes of the slices, in order.

        Raises ``TimeoutError``, ``ObjectNotFound``, ``CorruptObject`` and the store's errors that
        do not pass.
        """
        read = self.read_range
        if read is None:
            raise NotLeaderOrFollower("this node leads nothing yet")
        async with asyncio.timeout(READ_SECONDS_MAX):
            while True:
                try:
                    return await self._read_once(read, key, places)
                except (CorruptObject, ObjectNotFound):
                    raise
                except TidelogError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_once(
        self, read: RangeReader, key: str, places: Sequence[SlicePlace]
    ) -> list[bytearray]:
        """Read, and read once more if it takes long: a slow read keeps all behind it back."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reads = {asyncio.create_task(read_places(read, key, places))}
        try:
            hedge_s = max(HEDGE_SECONDS_MIN, HEDGE_PART * self._usual_s)
            done, _ = await asyncio.wait(reads, timeout=hedge_s)
            if not done:
                self._traffic.hedge_count += 1
                reads.add(asyncio.create_task(read_places(read, key, places)))
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            found = done.pop().result()
        finally:
            for one in reads:
                one.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        self._usual_s += USUAL_WEIGHT * (loop.time() - began_s - self._usual_s)
        return found
