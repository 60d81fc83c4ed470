"""Wait until this machine's nodes serve and are in sync, and signal CloudFormation.

Theory of operation. A rolling update replaces one machine after another; the next may be
replaced when no partition lacks a replica because of the previous one. That is not visible
from outside (a node accepts connections long before it has fetched the data that its new
disk lacks), so this program reads the metadata, like nodes:

- as many brokers as the machine has processes are registered at its address, the lease
  of each, taken by the registered process, is being renewed, and each answers clients;
- every partition that names one of them as a replica has it in its ISR.

A node with a new disk leaves every ISR before it registers, so a broker in an ISR after
that was added by the leader. The state must hold for a while, so that an earlier write of
a leader cannot be mistaken for it.

While its stack is being created, the first alone decides: zones are created one after another, and
the machines that have the data may come last.

Then CloudFormation gets SUCCESS, or FAILURE after the time limit, which ends the creation or
cancels the update. If nothing is waiting (a lost machine was replaced), CloudFormation says so, and
that is no error.

Exit status: 0 as it should be, 1 time limit exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.endpoints import NODE, PLAINTEXT
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.records import Broker, BrokerLease, broker_lease_key
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases.lease_times import LEASE_MS
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_health import Health, Probe
from tidelog_instance import METADATA_URL, InstanceMetadata

logger = logging.getLogger("tidelog_in_sync")

CHECK_SECONDS = 1.0
HOLD_SECONDS = LEASE_MS / 1000
SECONDS_MAX = 3300.0  # of CloudFormation's longest wait, an hour
PARTITIONS_NAMED_MAX = 10
ATTEMPTS_MAX = 10


def main() -> int:
    """Wait, signal, and return the exit status."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel("WARNING")
    given = _parse(sys.argv[1:])
    metadata = InstanceMetadata(given.metadata_url)
    host = metadata.get("local-ipv4")
    lacking = asyncio.run(
        wait_in_sync(
            given.metadata_store,
            host=host,
            node_count=given.processes_per_instance,
            needs_replicas=not (given.stack and _is_being_created(given.stack)),
            hold_seconds=given.hold_seconds,
            seconds_max=given.seconds_max,
        )
    )
    if lacking:
        logger.error("not in sync after %g s: %s", given.seconds_max, lacking)
    else:
        logger.info("nodes serve, nothing is lacking")
    if given.stack:
        instance_id = metadata.get("instance-id")
        _signal(given.stack, given.resource, instance_id, "FAILURE" if lacking else "SUCCESS")
    return 1 if lacking else 0


async def wait_in_sync(
    metadata_store: str,
    *,
    host: str,
    node_count: int,
    needs_replicas: bool,
    hold_seconds: float,
    seconds_max: float,
) -> str:
    """Return the missing conditions after the time limit, or nothing once all hold."""
    deadline = time.monotonic() + seconds_max
    store = open_metadata_store(metadata_store)
    nodes = MachinesNodes(store, host=host, node_count=node_count, needs_replicas=needs_replicas)
    since: float | None = None  # start of the time in which all conditions hold
    said = ""
    try:
        while True:
            now = time.monotonic()
            try:
                lacking = await nodes.check()
            except TidelogError as error:
                lacking = f"the metadata store is away: {error}"
            if lacking != said:
                logger.info("lacking: %s", lacking or "nothing")
                said = lacking
            if lacking:
                since = None
            elif since is None:
                since = now
            if since is not None and now - since >= hold_seconds:
                return ""
            if now >= deadline:
                return lacking or "nothing, but not for long enough"
            await asyncio.sleep(CHECK_SECONDS)
    finally:
        await store.close()


class MachinesNodes:
    """The nodes of one machine in the metadata, over several checks."""

    def __init__(
        self, store: MetadataStore, *, host: str, node_count: int, needs_replicas: bool
    ) -> None:
        self._store = store
        self._view = ClusterView(store)
        self._host = host
        self._node_count = node_count
        self._needs_replicas = needs_replicas
        self._first_counters: dict[UUID, int] = {}  # of leases, by the node's incarnation

    async def check(self) -> str:
        """Return the missing conditions now. Raises the store's errors."""
        image = await self._view.refresh()
        # The address may have been another machine's, whose brokers are still registered.
        live = [
            broker
            for broker in image.brokers.values()
            if any(e.host == self._host for e in broker.endpoints) and await self._is_live(broker)
        ]
        if len(live) < self._node_count:
            return f"{len(live)} of {self._node_count} nodes are alive at {self._host}"
        for broker in live:
            for probe in probes(broker, self._host):
                if await asyncio.to_thread(probe.ask) is not Health.SERVES:
                    return f"node {broker.broker_id} does not answer at {probe.host}:{probe.port}"
        if not self._needs_replicas:
            return ""
        return lacking_replicas(image, [broker.broker_id for broker in live])

    async def _is_live(self, broker: Broker) -> bool:
        """Return whether the registered process was seen to renew its lease."""
        item = await self._store.get(broker_lease_key(broker.broker_id))
        if item is None:
            return False
        lease = BrokerLease.from_item(item)
        if lease.incarnation != broker.incarnation or lease.counter == RELEASED:
            return False
        return lease.counter != self._first_counters.setdefault(lease.incarnation, lease.counter)


def probes(broker: Broker, host: str) -> list[Probe]:
    """Return the broker's listeners for clients, at the machine's address."""
    return [
        Probe(host, endpoint.port, has_tls=endpoint.listener != PLAINTEXT)
        for endpoint in broker.endpoints
        if endpoint.listener != NODE
    ]


def lacking_replicas(image: ClusterImage, broker_ids: Sequence[int]) -> str:
    """Return the partitions without one of the brokers in their ISR, as text; no I/O."""
    lacking = [
        f"{image.topic_names[topic_id]}-{partition.partition}"
        for topic_id, partitions in image.partitions_by_topic.items()
        for partition in partitions
        if any(b in partition.replicas and b not in partition.isr for b in broker_ids)
    ]
    if not lacking:
        return ""
    named = ", ".join(sorted(lacking)[:PARTITIONS_NAMED_MAX])
    dots = ", …" if len(lacking) > PARTITIONS_NAMED_MAX else ""
    return f"out of the ISR of {len(lacking)} partitions: {named}{dots}"


def _is_being_created(stack: str) -> bool:
    client = _cloudformation()
    try:
        (found,) = client.describe_stacks(StackName=stack)["Stacks"]
    finally:
        client.close()
    return str(found["StackStatus"]) == "CREATE_IN_PROGRESS"


def _cloudformation() -> Any:
    return boto3.client(
        "cloudformation",
        config=Config(retries={"mode": "standard", "max_attempts": ATTEMPTS_MAX}),
    )


def _signal(stack: str, resource: str, instance_id: str, status: str) -> None:
    client = _cloudformation()
    try:
        client.signal_resource(
            StackName=stack, LogicalResourceId=resource, UniqueId=instance_id, Status=status
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":
            raise
        logger.info("nothing is waiting: %s", error)
    else:
        logger.info("signalled %s to %s", status, stack)
    finally:
        client.close()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tidelog_in_sync", description="Wait until the machine's replicas are in sync."
    )
    parser.add_argument("--metadata-store", required=True)
    parser.add_argument("--processes-per-instance", type=int, required=True)
    parser.add_argument("--stack", default="", help="the CloudFormation stack to signal")
    parser.add_argument("--resource", default="Instances", help="its auto scaling group")
    parser.add_argument("--metadata-url", default=METADATA_URL)
    parser.add_argument("--hold-seconds", type=float, default=HOLD_SECONDS)
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
