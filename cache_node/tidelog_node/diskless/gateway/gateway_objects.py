"""Keeps a gateway's objects while references to their slices may need them.

The leader's answer says where the references end. If no answer came, nobody knows whether there is
a reference. After ``diskless.wal.max.age.ms`` (or ``REFERENCE_SECONDS_MAX``, if that is longer) a
leader makes no new one. Then the leader is asked for its log end, uncommitted records included: a
reference is below. The log of this node cannot tell. It ends at the high watermark, which may stay
below the reference for as long as the leader cannot store it, or cannot read the slice. The object
stays until a leader answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from operator import itemgetter

from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

AGAIN_SECONDS_MAX = 60.0  # until a leader that has not answered is asked again
# A gateway waits 45 s for an answer. The leader may learn later that the connection is closed.
REFERENCE_SECONDS_MAX = 120.0

LogEnds = Callable[[Collection[Replica]], Awaitable[Mapping[Replica, int]]]


class GatewayObject:
    """A committed object of the chain, and the known references to its foreign slices."""

    __slots__ = ("chain", "ends", "left_count", "sequence", "unknown")

    def __init__(self, chain: OwnedChain, sequence: int, count: int) -> None:
        self.chain = chain
        self.sequence = sequence
        self.left_count = count  # slices without a result
        self.ends: dict[PartitionName, int] = {}
        self.unknown: set[Replica] = set()  # a reference may come, or there may be one

    def refer(self, name: PartitionName, end_offset: int) -> None:
        """A reference to a slice of the partition ends there."""
        self.ends[name] = max(end_offset, self.ends.get(name, 0))


class GatewayObjects:
    """Releases objects in their chains once no reference needs them. For the node's event loop."""

    def __init__(self, node: NodeContext, log_ends: LogEnds) -> None:
        """``log_ends`` is ``LeaderLogEnds.of``."""
        self._node = node
        self._log_ends = log_ends
        self._loop = asyncio.get_running_loop()
        # Objects that a leader may still refer to, and until when.
        self._unknown: deque[tuple[float, GatewayObject]] = deque()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Look at no more objects."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def settle(self, gateway_object: GatewayObject) -> None:
        """One more slice of the object has its result, or will get none."""
        gateway_object.left_count -= 1
        if gateway_object.left_count:
            return
        if not gateway_object.unknown:
            gateway_object.chain.committed.settle_foreign(
                gateway_object.sequence, gateway_object.ends
            )
            return
        wait_s = max(self._age_s(), REFERENCE_SECONDS_MAX)
        self._unknown.append((self._loop.time() + wait_s, gateway_object))
        if self._looking is None and not self._is_closed:
            self._looking = asyncio.create_task(self._look(), name="gateway's unknown references")

    def _age_s(self) -> float:
        return self._node.config().diskless_wal_max_age_ms / 1000

    async def _look(self) -> None:
        """Settle objects whose leaders have had their time, until there is none any more."""
        try:
            while self._unknown:
                await asyncio.sleep(self._unknown[0][0] - self._loop.time())
                try:
                    await self._settle_due()
                except Exception:  # Else the chain would keep its objects for ever.
                    logger.exception("unknown references are not settled yet, will retry")
        finally:
            self._looking = None

    async def _settle_due(self) -> None:
        now = self._loop.time()
        due: list[GatewayObject] = []
        while self._unknown and self._unknown[0][0] <= now:
            due.append(self._unknown.popleft()[1])
        left = due
        try:
            ends = await self._log_ends({one for made in due for one in made.unknown})
            left = [made for made in due if not _settle_late(made, ends)]
        finally:
            again_s = self._loop.time() + min(self._age_s(), AGAIN_SECONDS_MAX)
            again = ((again_s, made) for made in left)
            self._unknown = deque(sorted((*again, *self._unknown), key=itemgetter(0)))


def _settle_late(made: GatewayObject, ends: Mapping[Replica, int]) -> bool:
    """Settle the object by the leaders' log ends; return false if one of them is missing."""
    if not made.unknown <= ends.keys():
        return False
    for replica in made.unknown:
        made.refer(replica.name, ends[replica])
    made.chain.committed.settle_foreign(made.sequence, made.ends)
    return True
