"""confluent-kafka (librdkafka) behind the line protocol."""

from __future__ import annotations

import base64
import os
import sys
import threading

from confluent_kafka import AcknowledgeType, Consumer, KafkaError, Producer, ShareConsumer

from tests.support.drivers.lines import Message, from_line, to_line

ASSIGNORS = {
    "range": "range",
    "roundrobin": "roundrobin",
    "cooperative-sticky": "cooperative-sticky",
}


def produce(bootstrap: str, topic: str, codec: str, idempotent: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent == "1",
            "message.max.bytes": 20_000_000,
            "linger.ms": 5,
        }
    )

    def acknowledged(error: object, message: object) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        print(f"acked {message.partition()} {message.offset()}", flush=True)

    for line in sys.stdin:
        message = from_line(line)
        options = {"partition": message.partition} if message.partition >= 0 else {}
        if message.timestamp_ms >= 0:
            options["timestamp"] = message.timestamp_ms
        producer.produce(
            topic,
            key=message.key,
            value=message.value,
            headers=list(message.headers),
            on_delivery=acknowledged,
            **options,
        )
    if producer.flush(60):
        raise RuntimeError("not everything was delivered")


def consume(
    bootstrap: str, topic: str, group: str, assignor: str, instance: str, session_ms: str
) -> None:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 20_000_000,
    }
    if assignor in ASSIGNORS:
        config["partition.assignment.strategy"] = ASSIGNORS[assignor]
        config["session.timeout.ms"] = int(session_ms)
        config["heartbeat.interval.ms"] = 500
    else:
        # An assignor of the server (KIP-848), which also sets the time-outs.
        config["group.protocol"] = "consumer"
        config["group.remote.assignor"] = assignor
    is_incremental = assignor not in ("range", "roundrobin")
    if instance != "-":
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    is_stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_stopping.set()), daemon=True).start()
    owned: set[int] = set()

    def say() -> None:
        print("assigned " + ",".join(map(str, sorted(owned))), flush=True)

    def assigned(consumer: Consumer, partitions: list) -> None:
        owned.update(p.partition for p in partitions)
        if is_incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        say()

    def revoked(consumer: Consumer, partitions: list) -> None:
        owned.difference_update(p.partition for p in partitions)
        if is_incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        say()

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    while not is_stopping.is_set():
        records = consumer.consume(500, timeout=0.1)
        for record in records:
            if record.error():
                if record.error().code() != KafkaError._PARTITION_EOF:
                    print(f"error {record.error()}", flush=True)
                continue
            message = Message(
                value=record.value(),
                key=record.key(),
                headers=tuple(record.headers() or ()),
                partition=record.partition(),
                timestamp_ms=record.timestamp()[1],
            )
            print(f"record {record.offset()} {to_line(message)}", flush=True)
        if not all(record.error() for record in records):
            consumer.commit(asynchronous=False)
    consumer.close()


def share(bootstrap: str, topic: str, group: str, mode: str) -> None:
    """Run a member of a share group that treats each record as its value says."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": mode,
        }
    )
    is_stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_stopping.set()), daemon=True).start()
    consumer.subscribe([topic])
    while not is_stopping.is_set():
        for record in consumer.poll(0.1):
            if record.error():
                print(f"error {record.error()}", flush=True)
                continue
            value, count = record.value(), record.delivery_count()
            print(
                f"delivered {record.partition()} {record.offset()} {count} "
                + base64.b64encode(value).decode(),
                flush=True,
            )
            if mode == "implicit":
                continue
            if value.startswith(b"hold"):
                is_stopping.wait()
                os._exit(1)
            kind = AcknowledgeType.ACCEPT
            if value.startswith(b"reject"):
                kind = AcknowledgeType.REJECT
            elif value.startswith(b"release") and count < 2:
                kind = AcknowledgeType.RELEASE
            consumer.acknowledge(record, kind)
        for partition, error in consumer.commit_sync().items():
            said = "committed" if error is None else f"error {error}"
            print(f"{said} {partition.partition}", flush=True)
    consumer.close()


if __name__ == "__main__":
    {"produce": produce, "consume": consume, "share": share}[sys.argv[1]](*sys.argv[2:])
