"""Keeps a gateway's objects while a reference to their slices is needed.

The leader's answer says where the references end. If none came, nobody knows whether there is one.
A leader that has not made it after ``diskless.wal.max.age.ms`` never will, so the log's end at that
time is an end of it. A node that is not in the ISR does not know the log's end, and keeps the
object.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidelog_core.config import INT64_MAX
from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica


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
    """Tells chains what their objects are needed for. For the node's event loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        # Objects of which a reference may come, and until when.
        self._unknown: deque[tuple[float, GatewayObject]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Look at no more objects."""
        if self._timer is not None:
            self._timer.cancel()

    def settle(self, made: GatewayObject) -> None:
        """One more slice of the object has its result, or will get none."""
        made.left_count -= 1
        if made.left_count:
            return
        if not made.unknown:
            made.chain.committed.settle_foreign(made.sequence, made.ends)
            return
        self._unknown.append((self._loop.time() + self._age_s(), made))
        if self._timer is None:
            self._timer = self._loop.call_later(self._age_s(), self._look)

    def _age_s(self) -> float:
        return self._node.config().diskless_wal_max_age_ms / 1000

    def _look(self) -> None:
        """Settle the objects of which a leader has had its time."""
        self._timer = None
        now = self._loop.time()
        age_s = self._age_s()
        while self._unknown and self._unknown[0][0] <= now:
            _, made = self._unknown.popleft()
            if all(map(self._knows_end, made.unknown)):
                _settle_late(made)
            else:
                self._unknown.append((now + age_s, made))
        if self._unknown:
            self._timer = self._loop.call_at(self._unknown[0][0], self._look)

    def _knows_end(self, replica: Replica) -> bool:
        """Whether this node's log has what was committed long ago, or will never have it.

        A log that lags may end below a reference: then the object would go too early.
        """
        if replica.is_dropped or replica.opened_log is None:
            return True  # ``_settle_late`` keeps the object.
        found = self._node.view.image.partition(replica.partition)
        can_serve = self._node.standing.can_serve()  # else the ISR may be an old one
        return can_serve and found is not None and self._node.broker_id in found.isr


def _settle_late(made: GatewayObject) -> None:
    for replica in made.unknown:
        log = replica.opened_log
        end_offset = INT64_MAX if log is None or replica.is_dropped else log.log_end_offset
        made.refer(replica.name, end_offset)
    made.chain.committed.settle_foreign(made.sequence, made.ends)
