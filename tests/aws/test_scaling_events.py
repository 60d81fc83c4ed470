"""A diskless-only cluster that grows and shrinks: machines' launchers and nodes, all real processes.

The broker ids are in DynamoDB Local; the instance metadata service and the auto scaling group's
answer are played.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.aws.machines import Instance, image_of, machines
from tests.aws.played_service import COMPLETED, played
from tests.support.waiting import eventually

TOPIC, GROUP = "t", "tidelog-diskless"
PARTITIONS = 12
UNREGISTER_MS = 4_000
SHARE_SECONDS_MAX, LEAVE_SECONDS_MAX = 60.0, 60.0  # of a busy machine
SETTINGS = (
    "log.diskless.enable=true",
    "default.replication.factor=1",
    f"broker.unregister.after.ms={UNREGISTER_MS}",
    "offsets.topic.num.partitions=4",
)

# The node's own parts have fast tests: tests/node/membership/test_departed_brokers.py, and the
# launcher in tests/aws/test_diskless_hosting.py.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("aws_credentials"),
]


class Sending:
    """A producer with a client's defaults that goes on until it is left."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.failed: list[str] = []
        self.slowest_s = 0.0
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._is_over.wait(0.01):
            self._producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=self._noting(number, time.monotonic()),
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(60) == 0

    def _noting(self, number: int, sent_at: float) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
                return
            self.slowest_s = max(self.slowest_s, time.monotonic() - sent_at)
            self.acked[number % PARTITIONS].add(number)

        return note


def led_by(machine: Instance, broker_id: int) -> int:
    return sum(p.leader == broker_id for p in image_of(machine).partitions(TOPIC))


def seconds_until(holds: Callable[[], bool], what: str, seconds_max: float) -> float:
    began = time.monotonic()
    eventually(holds, what, seconds_max)
    return time.monotonic() - began


def test_nodes_join_and_leave_under_load_and_no_produce_fails(
    tmp_path: Path, broker_id_table: str, dynamodb: Any, dynamodb_local_endpoint: str
) -> None:
    with (
        played(COMPLETED) as (scaling_url, completed),
        machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine,
    ):

        def start(name: str, zone: str) -> Instance:
            one = machine(name, zone_number=0, zone=zone, group=GROUP, settings=SETTINGS)
            one.environment["AWS_ENDPOINT_URL_AUTO_SCALING"] = scaling_url
            one.start()
            one.await_node()
            return one

        first, second = start("i-1", "us-east-1a"), start("i-2", "us-east-1b")
        assert (first.broker_id, second.broker_id) == (1001, 1002)
        bootstrap = f"{first.address}:{first.port},{second.address}:{second.port}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC].result(60)
        with Sending(bootstrap) as sending:
            eventually(lambda: all(sending.acked.values()), "all partitions take records")

            third = start("i-3", "us-east-1c")
            joined_s = seconds_until(
                lambda: led_by(third, third.broker_id) >= PARTITIONS // 3 - 1,
                "the new node has its share",
                SHARE_SECONDS_MAX,
            )
            sending.slowest_s = 0.0
            before = {number: len(acked) for number, acked in sending.acked.items()}

            first.values["autoscaling/target-lifecycle-state"] = "Terminated"
            left_s = seconds_until(
                lambda: led_by(third, 1001) == 0, "it leads nothing", LEAVE_SECONDS_MAX
            )
            assert first.process is not None
            assert first.process.wait(LEAVE_SECONDS_MAX) == 0, first.log
            eventually(lambda: all(len(sending.acked[n]) > before[n] for n in before), "all go on")
            slowest_s = sending.slowest_s
            assert len(completed) == 1  # the hook: the group need not wait for its time limit
            assert owners(dynamodb, broker_id_table) == {1002: "i-2/0", 1003: "i-3/0"}
            eventually(
                lambda: set(image_of(third).brokers) == {1002, 1003}, "nobody lists it any more"
            )

            # The next machine gets the id; nothing of the earlier one with it is left.
            fourth = start("i-4", "us-east-1a")
            assert fourth.broker_id == 1001
            eventually(lambda: led_by(fourth, 1001) >= PARTITIONS // 3 - 1, "it has its share", 60)
            # The last of the first two machines leaves.
            second.terminate()
            eventually(lambda: led_by(third, 1002) == 0, "it leads nothing", LEAVE_SECONDS_MAX)
        assert sending.failed == []
        print(f"share after {joined_s:.1f} s, left after {left_s:.1f} s, slowest {slowest_s:.2f} s")
        assert read_all(f"{third.address}:{third.port}", sending.acked)


def owners(dynamodb: Any, table: str) -> dict[int, str]:
    found = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
    return {int(item["broker_id"]["N"]): item["owner"]["S"] for item in found}


def read_all(bootstrap: str, acked: dict[int, set[int]]) -> bool:
    """Return whether a group that begins now reads every acknowledged record."""
    missing = {number for some in acked.values() for number in some}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    until = time.monotonic() + 60
    while missing and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            missing.discard(int(message.value() or b""))
    consumer.close()
    return not missing
