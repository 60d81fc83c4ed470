"""A producer that writes to another node with every batch, repeats some, and begins new epochs.

Real nodes, raw requests: two of them are gateways, the third one leads.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from tests.node.diskless.test_gateways import TOPIC, gateways
from tests.support.batches import batch_of
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow
PRODUCER_ID = 7_000
AGAIN = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
)


def read_all(cluster: ReplicatedCluster, count: int) -> list[tuple[int, bytes]]:
    consumer = Consumer({"bootstrap.servers": cluster.addresses, "group.id": "g"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        found: list[tuple[int, bytes]] = []

        def has_all() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append((message.offset(), message.value()))
            return len(found) == count

        eventually(has_all, "all records are read")
        assert consumer.poll(1.0) is None, "nothing else"
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("overlaps", ["false", "true"])
def test_every_batch_is_there_once_and_in_order(tmp_path: Path, overlaps: str) -> None:
    seed = 31
    print(f"seed {seed}")
    chance = Random(seed)
    config = {"diskless.gateways.overlap.enable": overlaps}
    with gateways(tmp_path, **config) as cluster, ExitStack() as stack:
        clients = [stack.enter_context(WireClient(node.port)) for node in cluster.nodes.values()]

        def send(data: bytes) -> int:
            """Send the batch to any node until one has taken it; return its offset."""
            offsets: list[int] = []

            def is_taken() -> bool:
                client = chance.choice(clients)
                answer = client.produce(TOPIC, data, acks=-1, timeout_ms=5_000)
                if answer.error_code is ErrorCode.none:
                    offsets.append(answer.base_offset)
                else:
                    assert answer.error_code in AGAIN
                return bool(offsets)

            eventually(is_taken, "a node takes it")
            return offsets[0]

        sent: list[tuple[int, bytes]] = []
        for epoch in range(3):
            for sequence in range(20):
                value = b"%d-%d" % (epoch, sequence)
                data = batch_of(value, producer=(PRODUCER_ID, epoch, sequence))
                sent.append((send(data), value))
                while chance.random() < 0.3:
                    assert send(data) == sent[-1][0], "a repetition has the offset of the first"
        assert read_all(cluster, len(sent)) == sent
        cluster.wait_same_logs(TOPIC)
