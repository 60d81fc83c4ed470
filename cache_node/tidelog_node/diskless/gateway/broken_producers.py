"""Producers that lost a batch on its way: no batch that they sent after it may be appended.

A log that does not know a producer accepts any sequence first, since it may have forgotten the
producer. So if a producer's first batch fails between the gateway and the log, and the second does
not, the log begins with the second. librdkafka then counts the first as delivered: it relies on
logs to refuse batches out of sequence. A client that writes to the leader itself has one connection
for both.

    a batch is lost               later batches of its producer are refused
    the producer repeats it       it and the batches sent after the repetition are accepted
    its next epoch begins         its batches are accepted: every log requires sequence 0 first
    a later one is acknowledged   so is the lost one, for its producer: it will not repeat it
    a log turns out to have it    later batches are accepted: the producer will not repeat it

Producers repeat batches that were refused with NOT_LEADER_OR_FOLLOWER, in order. They give a batch
up before it is forgotten here. All topics share the table: a topic whose producers lose more
batches than those of others loses its own entries first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.records.batch import BatchHeader

from tidelog_node.diskless.gateway.fair_eviction import FairEviction

PRODUCERS_MAX = 10_000  # that are remembered
BREAK_SECONDS = 600.0  # longer than producers repeat a batch
SEQUENCE_MASK = 0x7FFF_FFFF  # sequences begin again at 0 behind it


class BehindLost(NotLeaderOrFollower):
    """An earlier batch of the producer was lost, and has not come again."""


class ProducerBatch(NamedTuple):
    """A batch of an idempotent producer."""

    partition: PartitionName
    producer_id: int
    epoch: int
    sequence: int  # the first one


def producer_batch(partition: PartitionName, header: BatchHeader) -> ProducerBatch | None:
    """Return the batch, ``None`` if its producer is not idempotent."""
    if header.producer_id < 0:
        return None
    return ProducerBatch(partition, header.producer_id, header.producer_epoch, header.base_sequence)


_Key = tuple[PartitionName, int]  # of a producer


class _Break:
    """The first lost batch of a producer."""

    __slots__ = ("epoch", "lost_s", "sequence", "until")

    def __init__(self, epoch: int, sequence: int) -> None:
        self.lost_s = 0.0  # when it, or its repetition, was lost last
        self.epoch = epoch
        self.sequence = sequence
        self.until: int | None = None  # the number of its repetition; None: it has not come


class BrokenProducers:
    """The first lost batch of each producer and partition. Batches have ascending numbers."""

    def __init__(self, now_s: Callable[[], float], *, producers_max: int = PRODUCERS_MAX) -> None:
        """If the table is full, the oldest producers of a topic with more than its share go."""
        self._now_s = now_s
        self._breaks: OrderedDict[_Key, _Break] = OrderedDict()  # the last one is the newest
        self._room: FairEviction[UUID, _Key] = FairEviction(producers_max)  # of topics

    def __len__(self) -> int:
        """Return the number of producers that are remembered."""
        return len(self._breaks)

    def take(self, batch: ProducerBatch, number: int) -> None:
        """Note that a client has sent a batch, which may be the repetition of a lost one."""
        found = self._find(batch)
        if found is not None and found.until is None and not _is_behind(batch, found):
            found.until = number

    def has_come(self, batch: ProducerBatch) -> None:
        """Forget the producer if this is the lost batch, or one of its next epoch.

        For callers that get a producer's batches in the order in which it sends them.
        """
        found = self._find(batch)
        if found is not None and not self._blocks(found, batch, 0):
            self._forget((batch.partition, batch.producer_id))

    def acknowledge(self, batch: ProducerBatch) -> None:
        """Forget the producer if this is the lost batch, or a later one of the same epoch.

        A log has the lost one then. Its producer takes it for delivered, and does not repeat it.
        """
        found = self._find(batch)
        if found is None or batch.epoch != found.epoch:
            return
        if batch.sequence == found.sequence or _is_behind(batch, found):
            self._forget((batch.partition, batch.producer_id))

    def lose(
        self, batch: ProducerBatch, number: int, later: Iterable[tuple[int, ProducerBatch]] = ()
    ) -> None:
        """Note that a batch has failed, or that nobody knows whether it was appended.

        ``later`` yields the batches that its producer has sent after it, in order, with their
        numbers. The repetition may be among them, if the producer's request timed out.
        """
        key = (batch.partition, batch.producer_id)
        found = self._find(batch)
        if found is None or not (self._blocks(found, batch, number)):
            found = _Break(batch.epoch, batch.sequence)
            again = (at for at, one in later if not _is_behind(one, found))
            found.until = next(again, None)
        found.lost_s = self._now_s()
        self._breaks[key] = found
        self._breaks.move_to_end(key)
        gone = self._room.put(batch.partition.topic_id, key)
        if gone is not None:
            del self._breaks[gone]

    def blocks(self, batch: ProducerBatch, number: int) -> bool:
        """Return whether an earlier batch of the producer is lost, so this one must be refused."""
        found = self._find(batch)
        return found is not None and self._blocks(found, batch, number)

    def note_log(
        self, batch: ProducerBatch, number: int, producers: ProducerState, end_offset: int
    ) -> None:
        """Accept this batch and later ones if a log has the lost batch below the offset.

        The producer has got that answer from another node, or from this one as a leader. It does
        not repeat the batch, and would be refused for ever.
        """
        found = self._find(batch)
        if found is not None and found.until is None:
            lost = batch._replace(epoch=found.epoch, sequence=found.sequence)
            if _has_batch(producers, lost, end_offset):
                found.until = number

    def _find(self, batch: ProducerBatch) -> _Break | None:
        """Return the producer's lost batch, and forget batches that were lost long ago."""
        before_s = self._now_s() - BREAK_SECONDS
        while self._breaks:
            key, oldest = next(iter(self._breaks.items()))
            if oldest.lost_s > before_s:
                break
            self._forget(key)
        return self._breaks.get((batch.partition, batch.producer_id))

    def _forget(self, key: _Key) -> None:
        del self._breaks[key]
        self._room.remove(key)

    @staticmethod
    def _blocks(found: _Break, batch: ProducerBatch, number: int) -> bool:
        if found.until is not None and number >= found.until:
            return False
        return batch.epoch < found.epoch or _is_behind(batch, found)


def _is_behind(batch: ProducerBatch, lost: _Break) -> bool:
    """Return whether the batch is a later one of the same epoch."""
    distance = (batch.sequence - lost.sequence) & SEQUENCE_MASK
    return batch.epoch == lost.epoch and 0 < distance <= SEQUENCE_MASK // 2


def _has_batch(producers: ProducerState, lost: ProducerBatch, end_offset: int) -> bool:
    """Return whether the batch was appended below the offset, or its epoch is over."""
    entry = producers.entry(lost.producer_id)
    if entry is None or entry.epoch != lost.epoch:
        return entry is not None and entry.epoch > lost.epoch
    return any(
        one.last_offset < end_offset
        and (one.last_sequence - lost.sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2
        for one in entry.batches
    )
