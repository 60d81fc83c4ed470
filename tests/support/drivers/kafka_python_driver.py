"""kafka-python behind the line protocol."""

from __future__ import annotations

import sys
import threading
import time

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.drivers.lines import Message, from_line, to_line

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


def produce(bootstrap: str, topic: str, codec: str, idempotent: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent == "1",
        acks="all",
        max_request_size=20_000_000,
    )
    sent = []
    for line in sys.stdin:
        message = from_line(line)
        sent.append(
            producer.send(
                topic,
                key=message.key,
                value=message.value,
                headers=[(name, value) for name, value in message.headers],
                partition=message.partition if message.partition >= 0 else None,
                timestamp_ms=message.timestamp_ms if message.timestamp_ms >= 0 else None,
            )
        )
    for future in sent:
        done = future.get(timeout=60)
        print(f"acked {done.partition} {done.offset}", flush=True)
    producer.close()


class _Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.is_assigned = False

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: object) -> None:
        owned = sorted(p.partition for p in assigned)
        print("assigned " + ",".join(map(str, owned)), flush=True)
        self.is_assigned = True


def consume(
    bootstrap: str, topic: str, group: str, assignor: str, instance: str, session_ms: str
) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=None if instance == "-" else instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[ASSIGNORS[assignor]],
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=500,
        max_partition_fetch_bytes=20_000_000,
    )
    listener = _Listener()
    consumer.subscribe([topic], listener=listener)
    # It would join before it has the topic's partitions, and rejoin once it has them; but
    # kafka-python 3.0.12 forgets such a rejoin if `poll` runs out of time before it is through.
    # So it loads them first, and has a long timeout for its first join on a busy machine.
    while not consumer.partitions_for_topic(topic):
        time.sleep(0.05)
    is_stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_stopping.set()), daemon=True).start()
    while not is_stopping.is_set():
        batches = consumer.poll(timeout_ms=100 if listener.is_assigned else 2000)
        for records in batches.values():
            for record in records:
                message = Message(
                    value=record.value,
                    key=record.key,
                    headers=tuple(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                print(f"record {record.offset} {to_line(message)}", flush=True)
        if batches:
            consumer.commit()
    consumer.close()


if __name__ == "__main__":
    {"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
