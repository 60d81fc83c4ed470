"""aiokafka behind the line protocol."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.drivers.lines import Message, from_line, to_line

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


async def produce(bootstrap: str, topic: str, codec: str, idempotent: str) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent == "1",
        acks="all",
        max_request_size=20_000_000,
    ) as producer:
        sent = []
        for line in sys.stdin:
            message = from_line(line)
            sent.append(
                await producer.send(
                    topic,
                    key=message.key,
                    value=message.value,
                    headers=[(name, value) for name, value in message.headers],
                    partition=message.partition if message.partition >= 0 else None,
                    timestamp_ms=message.timestamp_ms if message.timestamp_ms >= 0 else None,
                )
            )
        for future in sent:
            done = await future
            print(f"acked {done.partition} {done.offset}", flush=True)


class _Listener(ConsumerRebalanceListener):
    async def on_partitions_revoked(self, revoked: object) -> None:
        pass

    async def on_partitions_assigned(self, assigned: object) -> None:
        owned = sorted(p.partition for p in assigned)
        print("assigned " + ",".join(map(str, owned)), flush=True)


async def consume(
    bootstrap: str, topic: str, group: str, assignor: str, instance: str, session_ms: str
) -> None:
    consumer = AIOKafkaConsumer(
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
    consumer.subscribe([topic], listener=_Listener())
    await consumer.start()
    stopping = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not stopping.done():
        batches = await consumer.getmany(timeout_ms=100)
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
            await consumer.commit()
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run({"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:]))
