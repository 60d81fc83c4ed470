"""A consumer as a process of its own, to be stopped and continued by a test.

    python -m tests.node.coordinator.group_member <bootstrap> <group> <topic> [name=value …]

Prints one JSON line for each thing that happens to it, and commits the end of every
partition that it has whenever a line comes in.
"""

from __future__ import annotations

import json
import select
import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition


def main(bootstrap: str, group: str, topic: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    if given.get("group.protocol") != "consumer":
        # Of the new protocol these are the coordinator's.
        given = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500", **given}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **given,
        }
    )

    def tell(what: str, partitions: list[TopicPartition]) -> None:
        print(json.dumps([what, sorted(p.partition for p in partitions)]), flush=True)

    consumer.subscribe(
        [topic],
        on_assign=lambda _, some: tell("assigned", some),
        on_revoke=lambda _, some: tell("revoked", some),
        on_lost=lambda _, some: tell("lost", some),
    )
    while True:
        consumer.poll(0.1)
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            offsets = [TopicPartition(topic, int(p), int(line)) for p in range(4)]
            mine = {p.partition for p in consumer.assignment()}
            try:
                consumer.commit(
                    offsets=[o for o in offsets if o.partition in mine], asynchronous=False
                )
                print(json.dumps(["committed", sorted(mine)]), flush=True)
            except KafkaException as error:
                print(json.dumps([error.args[0].name(), []]), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
