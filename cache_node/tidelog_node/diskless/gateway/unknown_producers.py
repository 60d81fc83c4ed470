"""Producers that a leader does not know, and that do not begin with sequence 0.

A client whose gateway changes sends its next batch through the new one, while the former gateway
may have no answer to the batch before. If that is the producer's first batch, the log would accept
the second one before it. So the later batch is refused for ``UNKNOWN_SECONDS``. In less time a
gateway answers a batch or gives it up, and then the producer repeats it. A producer that is still
unknown afterwards was forgotten by the log, and may go on with the first of its refused batches.

If a batch of the partition was lost and nobody knows its producer, it may be the batch before, and
its producer may repeat it for longer. So the wait is longer then. It counts from the first refused
batch of the producer itself: batches that others lose do not extend it.

A node has one table for batches from gateways and from clients. Each source has a share of it, so a
source that names more and more producers evicts only its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.model import Principal

from tidelog_node.diskless.gateway.broken_producers import SEQUENCE_MASK, ProducerBatch
from tidelog_node.diskless.gateway.fair_eviction import FairEviction
from tidelog_node.diskless.gateway.missed_batches import MISSED_SECONDS
from tidelog_node.requests.session import Session

UNKNOWN_SECONDS = 45.0  # a gateway keeps a batch for 30 s, and a leader reads it for 10 s
FORGOTTEN_SECONDS = MISSED_SECONDS + 60.0  # the producer begins again behind it
PRODUCERS_MAX = 10_000


class ClientSource(NamedTuple):
    """A client that writes to the leader itself."""

    principal: Principal
    host: str


class GatewaySource(NamedTuple):
    """The clients of one gateway and topic: their leader does not know which of them it is.

    All of them may write to the topic.
    """

    broker_id: int
    topic_id: UUID


Source = ClientSource | GatewaySource
_Key = tuple[PartitionName, int, int]  # of a producer's epoch


def client_source(session: Session) -> ClientSource:
    """Return the source of batches on the session's connection."""
    return ClientSource(session.principal, session.client_host)


class _Unknown(NamedTuple):
    """The refused batches of an unknown producer."""

    since_s: float  # when its first later batch came
    first: ProducerBatch  # the earliest one


class UnknownProducers:
    """Remembers when each unknown producer has sent a later batch. For the node's event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._refused: OrderedDict[_Key, _Unknown] = OrderedDict()  # oldest first
        self._room: FairEviction[Source, _Key] = FairEviction(PRODUCERS_MAX)

    def __len__(self) -> int:
        """Return the number of producers that are remembered."""
        return len(self._refused)

    def may_take(
        self, batch: ProducerBatch, source: Source, *, is_behind_unknown: bool = False
    ) -> bool:
        """Return whether to take a batch of a producer that the log does not know.

        ``is_behind_unknown``: a batch of the partition was lost, and nobody knows its producer.
        """
        if batch.sequence == 0:
            return True
        now_s = self._now_s()
        while self._refused:
            oldest_key, oldest = next(iter(self._refused.items()))
            if oldest.since_s > now_s - FORGOTTEN_SECONDS:
                break
            self._forget(oldest_key)
        key = batch.partition, batch.producer_id, batch.epoch
        known = self._refused.get(key)
        if known is None:
            self._refused[key] = _Unknown(now_s, batch)
            gone = self._room.put(source, key)
            if gone is not None:
                del self._refused[gone]
            return False
        if _is_behind(batch, known.first):
            return False
        if now_s - known.since_s >= (MISSED_SECONDS if is_behind_unknown else UNKNOWN_SECONDS):
            self._forget(key)
            return True
        self._refused[key] = known._replace(first=batch)
        return False

    def _forget(self, key: _Key) -> None:
        del self._refused[key]
        self._room.remove(key)


def _is_behind(batch: ProducerBatch, first: ProducerBatch) -> bool:
    distance = (batch.sequence - first.sequence) & SEQUENCE_MASK
    return 0 < distance <= SEQUENCE_MASK // 2
