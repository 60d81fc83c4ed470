"""Producers that a leader does not know, and that do not begin with their first batch.

A client whose gateway changes sends its next batch through the new one, while the former gateway
still owes the answer to the one before. If that is the producer's first batch, the log would take
the second one before it. A gateway answers or gives a batch up in less time than is waited here,
and then the producer repeats it. So a producer that is still unknown after that time is one that
the log has forgotten, and its batch is taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tidelog_node.diskless.gateway.broken_producers import ProducerBatch

STRANGE_SECONDS = 45.0  # a gateway keeps a batch for 30 s, and a leader reads it for 10 s
FORGOTTEN_SECONDS = 600.0  # the producer begins again behind it
PRODUCERS_MAX = 10_000


class StrangeProducers:
    """Remembers when each unknown producer has sent a later batch. For the node's event loop."""

    def __init__(self, now_s: Callable[[], float], *, producers_max: int = PRODUCERS_MAX) -> None:
        self._now_s = now_s
        self._producers_max = producers_max
        self._since_s: OrderedDict[tuple[object, int, int], float] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Return the number of producers that are remembered."""
        return len(self._since_s)

    def may_take(self, batch: ProducerBatch) -> bool:
        """Return whether to take a batch of a producer that the log does not know."""
        if batch.sequence == 0:
            return True
        now_s = self._now_s()
        while self._since_s and next(iter(self._since_s.values())) <= now_s - FORGOTTEN_SECONDS:
            self._since_s.popitem(last=False)
        key = batch.partition, batch.producer_id, batch.epoch
        if now_s - self._since_s.setdefault(key, now_s) >= STRANGE_SECONDS:
            del self._since_s[key]
            return True
        if len(self._since_s) > self._producers_max:
            self._since_s.popitem(last=False)
        return False
