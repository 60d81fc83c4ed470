"""What an update waits for before it takes the next machine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from tidelog import Admin, Producer
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store

from tests.aws.machines import WAIT_SECONDS_MAX, Instance, image_of, machines
from tests.support.waiting import eventually
from tools import sam

SETTINGS = ("replica.lag.time.max.ms=2000", "default.replication.factor=3")
TOPIC = "orders"
STACK = {
    "Resources": {
        # Waits for signals as a group of machines does that is updated.
        "Instances": {
            "Type": "AWS::CloudFormation::WaitCondition",
            "CreationPolicy": {"ResourceSignal": {"Count": 1, "Timeout": "PT5M"}},
        }
    }
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_credentials")]


def isrs(machine: Instance, topic: str = TOPIC) -> list[set[int]]:
    """Return the ISRs of the topic's partitions."""
    return [set(partition.isr) for partition in image_of(machine).partitions(topic)]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit status and log."""
    log, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
    return process.returncode, log


def produce(machine: Instance, count: int) -> None:
    address = f"{machine.address}:{machine.port}"
    with Producer(address, acks="all").sync() as producer:
        for number in range(count):
            producer.send(TOPIC, b"x" * 1000, partition=number % 2)
        producer.flush()


def create_topic(machine: Instance, *, replicas: int) -> None:
    with Admin(f"{machine.address}:{machine.port}").sync() as admin:
        admin.create_topic(TOPIC, partition_count=2, replication_factor=replicas)


@pytest.fixture
def cloudformation(ministack_endpoint: str) -> Iterator[Any]:
    client = boto3.client("cloudformation", endpoint_url=ministack_endpoint, region_name=sam.REGION)
    yield client
    client.close()


@pytest.mark.slow  # the next test asks of the same program in short
def test_an_update_waits_until_the_replicas_of_a_new_machine_are_in_sync(
    tmp_path: Path,
    broker_id_table: str,
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    cloudformation: Any,
) -> None:
    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        first, old = (machine(f"i-{z}", zone_number=z, settings=SETTINGS) for z in (1, 2))
        first.start()
        old.start()
        first.await_node()
        old.await_node()
        create_topic(first, replicas=2)
        produce(first, 100)
        assert ended(old.wait_in_sync(WAIT_SECONDS_MAX))[0] == 0
        old.terminate()
        status, log = ended(old.wait_in_sync(1.0))
        assert (status, "0 of 1 nodes are alive" in log) == (1, True)

        new = machine("i-3", zone_number=2, settings=SETTINGS)
        eventually(lambda: isrs(first) == [{101}, {101}], "it has left the ISRs")
        with first.suspended():
            # The new machine serves clients but cannot fetch: the leader is suspended.
            new.start()
            new.await_node()
            status, log = ended(new.wait_in_sync(5.0))
            # A stack that is being created waits only for nodes that serve: the node with the data may
            # be the last to start.
            new.environment["AWS_ENDPOINT_URL_CLOUDFORMATION"] = ministack_endpoint
            cloudformation.create_stack(StackName="created", TemplateBody=json.dumps(STACK))
            created = ended(new.wait_in_sync(WAIT_SECONDS_MAX, stack="created"))
        assert (created[0], "signalled SUCCESS" in created[1]) == (0, True), created[1]
        assert status == 1
        assert "out of the ISR of 2 partitions: orders-0, orders-1" in log
        status, log = ended(new.wait_in_sync(WAIT_SECONDS_MAX))
        assert status == 0, log
        assert isrs(first) == [{101, 201}, {101, 201}]


def test_cloudformation_learns_how_it_ended(
    tmp_path: Path,
    broker_id_table: str,
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    cloudformation: Any,
) -> None:
    def stack_that_waits() -> str:
        name = f"waits-{uuid.uuid4().hex}"
        cloudformation.create_stack(
            StackName=name, TemplateBody=json.dumps(STACK), DisableRollback=True
        )
        return name

    def status_of(name: str) -> str:
        (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
        return str(stack["StackStatus"])

    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        instance = machine("i-1")
        instance.environment["AWS_ENDPOINT_URL_CLOUDFORMATION"] = ministack_endpoint
        good, bad = stack_that_waits(), stack_that_waits()
        instance.start()
        instance.await_node()
        assert status_of(good) == "CREATE_IN_PROGRESS"
        status, log = ended(instance.wait_in_sync(WAIT_SECONDS_MAX, stack=good))
        assert (status, "signalled SUCCESS" in log) == (0, True), log
        eventually(lambda: status_of(good) == "CREATE_COMPLETE", "it goes on")
        # The replacement of a lost machine signals a stack that is not waiting.
        status, log = ended(instance.wait_in_sync(WAIT_SECONDS_MAX, stack=good))
        assert (status, "nothing is waiting" in log) == (0, True), log
        # The machine's second node never starts.
        status, log = ended(instance.wait_in_sync(1.0, stack=bad, processes=2))
        assert (status, "1 of 2 nodes are alive" in log) == (1, True), log
        eventually(lambda: status_of(bad) == "CREATE_FAILED", "it is cancelled")


@contextmanager
def producing(address: str) -> Iterator[list[int]]:
    """Produce to both partitions with acks=all in the background; yield one item for each ack."""
    acknowledged: list[int] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            with Producer(address, acks="all", linger_ms=0).sync() as producer:
                while not is_over.is_set():
                    producer.send(TOPIC, b"x" * 1000, partition=len(acknowledged) % 2).result()
                    acknowledged.append(1)
                    time.sleep(0.02)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        is_over.set()
        thread.join()
    assert failures == []


@contextmanager
def fewest_in_sync(machine: Instance) -> Iterator[list[int]]:
    """Read the ISRs every 50 ms in the background; yield the size of the smallest each time."""
    seen: list[int] = []
    is_over = threading.Event()

    async def watch() -> None:
        store = open_metadata_store(machine.metadata_store)
        view = ClusterView(store)
        while not is_over.is_set():
            image = await view.refresh()
            seen.append(min(len(partition.isr) for partition in image.partitions(TOPIC)))
            await asyncio.sleep(0.05)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
def test_an_update_of_all_machines_leaves_every_partition_two_replicas_in_sync(
    tmp_path: Path, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    settings = (*SETTINGS, "min.insync.replicas=2")
    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        running = {z: machine(f"i-{z}", zone_number=z, settings=settings) for z in (1, 2, 3)}
        for one in running.values():
            one.start()
        for one in running.values():
            one.await_node()
        create_topic(running[1], replicas=3)
        produce(running[1], 2000)
        addresses = ",".join(f"{one.address}:{one.port}" for one in running.values())
        with fewest_in_sync(running[1]) as seen, producing(addresses) as acknowledged:
            for zone, old in running.items():
                before = len(acknowledged)
                old.terminate()
                new = machine(f"i-new-{zone}", zone_number=zone, settings=settings)
                new.start()
                status, log = ended(new.wait_in_sync(WAIT_SECONDS_MAX))
                assert status == 0, log
                assert isrs(new) == [{101, 201, 301}] * 2
                assert len(acknowledged) > before
        assert min(seen) == 2
        assert seen[-1] == 3
