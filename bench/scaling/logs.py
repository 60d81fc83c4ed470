"""Dimensions of logs: partitions, replicas, topics, and the segments of one partition."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kio.schema.incremental_alter_configs.v1 import request as alter_configs
from tidelog_core.batched import batched
from tidelog_core.wire_messages import build

from bench.peers.topics import PRODUCE
from bench.scaling.cluster import CALL_SECONDS_MAX, HOT, Cluster
from bench.scaling.workload import produce_error, produced
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, frame, produce_body

SEGMENT_SIZE_BYTES = 16_384
TOPIC_PARTITIONS_MAX = 1_000
_IN_FLIGHT = 50
_TOPIC, _SET = 2, 0  # of IncrementalAlterConfigs: the resource's type, the operation
_ALTERED_AT_ONCE = 200


class Partitions:
    """Partitions with one record each, in topics of 1,000."""

    def __init__(self, replicas: int = 1) -> None:
        self._replicas = replicas
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Create topics with the missing partitions, and write to each."""
        for first in range(self._count, count, TOPIC_PARTITIONS_MAX):
            size = min(TOPIC_PARTITIONS_MAX, count - first)
            name = f"idle-{first}"
            cluster.create_topics({name: size}, replicas=self._replicas)
            _fill(cluster, {name: size})
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


class Topics:
    """Topics of one partition with one record; optionally with a changed setting."""

    def __init__(self, *, are_altered: bool = False) -> None:
        self._are_altered = are_altered
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Create the missing topics."""
        names = [f"idle-{number}" for number in range(self._count, count)]
        sizes = dict.fromkeys(names, 1)
        cluster.create_topics(sizes)
        _fill(cluster, sizes)
        if self._are_altered:
            _alter(cluster, names)
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


class LocalSegments:
    """Segments of 16 KiB in the workload's partition."""

    def __init__(self) -> None:
        self._count = 1

    def grow(self, cluster: Cluster, count: int) -> None:
        """Append a batch for each; two batches do not fit into a segment."""
        batch = batch_of(b"x" * (SEGMENT_SIZE_BYTES - 1_000))
        request = frame(*PRODUCE, 1, produce_body(HOT, batch), tags=b"")
        with cluster.client(cluster.await_record()) as client:
            for _ in range(self._count, count):
                produced(client, request, HOT)
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


def _fill(cluster: Cluster, sizes: Mapping[str, int]) -> None:
    """Write a record to every partition, through its leader. Raises ``TimeoutError``."""
    left = [(name, number) for name, size in sizes.items() for number in range(size)]
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while left:
        for node in cluster.nodes:
            with cluster.client(node.port) as client:
                left = _refused(client, left)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} partitions took no record, as {left[0]}")


def _refused(client: WireClient, partitions: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Produce to each, some at a time; return the partitions that this broker does not lead."""
    batch = batch_of(b"first")
    refused = []
    for some in batched(partitions, _IN_FLIGHT):
        bodies = [produce_body(name, batch, partition=number, acks=-1) for name, number in some]
        client.send(b"".join(frame(*PRODUCE, 1, body, tags=b"") for body in bodies))
        for name, number in some:
            if produce_error(client.receive(), name):
                refused.append((name, number))
    return refused


def _alter(cluster: Cluster, names: list[str]) -> None:
    config = build(
        alter_configs.AlterableConfig,
        name="retention.ms",
        config_operation=_SET,
        value="500000000",
    )
    with cluster.client() as client:
        for some in batched(names, _ALTERED_AT_ONCE):
            resources = tuple(
                build(
                    alter_configs.AlterConfigsResource,
                    resource_type=_TOPIC,
                    resource_name=name,
                    configs=(config,),
                )
                for name in some
            )
            request = build(alter_configs.IncrementalAlterConfigsRequest, resources=resources)
            refused = [a for a in client.call(request).responses if a.error_code]
            if refused:
                raise RuntimeError(f"a setting was not changed: {refused[0]}")
