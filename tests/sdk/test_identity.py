"""When an idempotent producer may send a partition's next batch."""

from __future__ import annotations

from tidelog.options import IN_FLIGHT_MAX_IDEMPOTENT
from tidelog.producing.accumulator import PartitionQueue
from tidelog.producing.batch import ProducerBatch
from tidelog.producing.identity import may_send, number
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record

PARTITION = TopicPartition("t", 0)


def queued_batch() -> ProducerBatch:
    batch = ProducerBatch(PARTITION, 0.0)
    batch.records.append(Record(0, 1, None, b"x", ()))
    return batch


def send_one(queue: PartitionQueue) -> ProducerBatch:
    batch = queue.batches.popleft()
    number(queue, batch)
    queue.in_flight.append(batch)
    return batch


def test_nothing_follows_the_first_batch_until_the_leader_knows_the_producer() -> None:
    """A leader that knows nothing of it takes any sequence for the first."""
    queue = PartitionQueue(PARTITION)
    queue.batches.extend(queued_batch() for _ in range(3))
    assert may_send(queue, queue.batches[0])
    first = send_one(queue)
    assert not may_send(queue, queue.batches[0])
    queue.in_flight.remove(first)  # Its leader died, or did not answer.
    queue.put_back(first)
    assert queue.batches[0] is first
    assert may_send(queue, first)
    send_one(queue)
    assert not may_send(queue, queue.batches[0])


def test_five_batches_are_open_at_most_once_the_leader_knows_the_producer() -> None:
    queue = PartitionQueue(PARTITION)
    queue.is_known_to_leader = True
    queue.batches.extend(queued_batch() for _ in range(IN_FLIGHT_MAX_IDEMPOTENT + 1))
    for _ in range(IN_FLIGHT_MAX_IDEMPOTENT):
        assert may_send(queue, queue.batches[0])
        send_one(queue)
    assert not may_send(queue, queue.batches[0])
