"""Producers that a leader does not know, and that do not begin with their first batch.

A client whose gateway changes sends its next batch through the new one, while the former gateway
still owes the answer to the one before. If that is the producer's first batch, the log would take
the second one before it. A gateway answers or gives a batch up in less time than is waited here,
and then the producer repeats it. So a producer that is still unknown after that time is one that
the log has forgotten, and it may go on: with the first of the batches that were refused here. Some
of them may have come just before that time, and the next one just after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tidelog_node.diskless.gateway.broken_producers import SEQUENCE_MASK, ProducerBatch

STRANGE_SECONDS = 45.0  # a gateway keeps a batch for 30 s, and a leader reads it for 10 s
FORGOTTEN_SECONDS = 600.0  # the producer begins again behind it
PRODUCERS_MAX = 10_000


_Key = tuple[PartitionName, int, int]  # of a producer's epoch


class _Strange(NamedTuple):
    """What was refused of an unknown producer."""

    since_s: float  # when its first later batch came
    first: ProducerBatch  # the earliest one


class StrangeProducers:
    """Remembers when each unknown producer has sent a later batch. For the node's event loop."""

    def __init__(self, now_s: Callable[[], float], *, producers_max: int = PRODUCERS_MAX) -> None:
        self._now_s = now_s
        self._producers_max = producers_max
        self._refused: OrderedDict[_Key, _Strange] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Return the number of producers that are remembered."""
        return len(self._refused)

    def may_take(self, batch: ProducerBatch) -> bool:
        """Return whether to take a batch of a producer that the log does not know."""
        if batch.sequence == 0:
            return True
        now_s = self._now_s()
        while self._refused:
            oldest = next(iter(self._refused.values()))
            if oldest.since_s > now_s - FORGOTTEN_SECONDS:
                break
            self._refused.popitem(last=False)
        key = batch.partition, batch.producer_id, batch.epoch
        known = self._refused.setdefault(key, _Strange(now_s, batch))
        if not _is_behind(batch, known.first):
            if now_s - known.since_s >= STRANGE_SECONDS:
                del self._refused[key]
                return True
            self._refused[key] = known._replace(first=batch)
        if len(self._refused) > self._producers_max:
            self._refused.popitem(last=False)
        return False


def _is_behind(batch: ProducerBatch, first: ProducerBatch) -> bool:
    distance = (batch.sequence - first.sequence) & SEQUENCE_MASK
    return 0 < distance <= SEQUENCE_MASK // 2
