"""Measures the pause of writes after a leader is killed; writes bench/results/take_over.json.

Three real nodes on SQLite and on DynamoDB Local. A leader is ended with ``kill -9``. Raw clients
then produce with acks=all to every partition it led, at the remaining nodes, until each partition
has acknowledged one record. The pause is the time from the kill to the last acknowledgement. The
nodes are killed in turns. Leases are in real time, so wall time is measured; other work on the
machine can only lengthen it. All trials on both stores take five minutes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.produce.v8 import request as produce
from tidelog_core.wire_messages import build

from bench.command_line import parser_of
from bench.stores import MeasuredStore, store_named
from tests.support.batches import batch_of
from tests.support.replicated_cluster import (
    ReplicatedCluster,
    eventually,
    replicated_cluster,
)
from tests.support.wire_client import WireClient, milliseconds

RETRY_SECONDS = 0.02
SECONDS_MAX = 60.0
ACK_TIMEOUT_MS = 1000
DEFAULTS = {"replica.lag.time.max.ms": "30000", "remote.task.interval.ms": "1000"}
RESULTS = Path(__file__).parent / "results" / "take_over.json"


@dataclass(frozen=True, slots=True)
class Trial:
    """A cluster whose nodes are killed one after the other."""

    lease_ms: int  # broker.session.timeout.ms
    partitions: int
    kills: int
    settle_seconds: float  # before each kill
    wanted_seconds: float
    beyond_lease: bool = False  # the goal counts from the lease's end


STORES = ("sqlite", "dynamodb")
TRIALS = {
    "default": Trial(9000, partitions=12, kills=3, settle_seconds=2, wanted_seconds=12),
    "short": Trial(2000, partitions=12, kills=4, settle_seconds=2, wanted_seconds=3),
    "wide": Trial(
        2000, partitions=1000, kills=1, settle_seconds=3, wanted_seconds=5, beyond_lease=True
    ),
}


def main() -> None:
    """Measure and print."""
    parser = parser_of("take_over", __doc__)
    parser.add_argument(
        "wanted",
        nargs="*",
        metavar="NAME",
        help=f"stores ({', '.join(STORES)}) and trials ({', '.join(TRIALS)}); without one, all",
    )
    wanted: list[str] = parser.parse_args().wanted
    if unknown := set(wanted) - {*STORES, *TRIALS}:
        parser.error(f"no such store or trial: {', '.join(sorted(unknown))}")
    results: dict[str, dict[str, object]] = {}
    for store_name in [name for name in STORES if name in wanted] or STORES:
        for trial_name in [name for name in TRIALS if name in wanted] or TRIALS:
            with (
                tempfile.TemporaryDirectory() as folder,
                store_named(store_name, Path(folder)) as store,
            ):
                if store is not None:
                    found = _measure(store, Path(folder), TRIALS[trial_name])
                    results[f"{store.name}, {trial_name}"] = found
                    print(f"{store.name}, {trial_name}: {json.dumps(found)}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def _measure(store: MeasuredStore, folder: Path, trial: Trial) -> dict[str, object]:
    config = {**DEFAULTS, "broker.session.timeout.ms": str(trial.lease_ms)}
    kills: list[dict[str, float]] = []
    with replicated_cluster(folder, config=config, metadata_store=store.url) as cluster:
        _create(cluster, trial.partitions)
        for number in range(trial.kills):
            _wait_in_sync(cluster, trial.partitions)
            time.sleep(trial.settle_seconds)
            # Each kill is at another time between two renewals of the lease.
            time.sleep(number * trial.lease_ms / 1000 / 3 / trial.kills)
            kills.append(_kill_leader(cluster, 1 + number % 3))
            if number + 1 < trial.kills:
                cluster.nodes[1 + number % 3].start()
    longest = max(kill["seconds"] for kill in kills)
    if trial.beyond_lease:
        longest -= trial.lease_ms / 1000
    return {
        "lease_s": trial.lease_ms / 1000,
        "partitions": trial.partitions,
        "kills": kills,
        "longest_beyond_lease_s" if trial.beyond_lease else "longest_s": round(longest, 2),
        "wanted_s": trial.wanted_seconds,
    }


def _create(cluster: ReplicatedCluster, partitions: int) -> None:
    """Create the topic with its leaders spread evenly."""
    orders = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1]]
    if partitions >= 1000:
        orders = [[1, 2, 3], [1, 3, 2]]  # All lose their leader at once.
    assignment = [orders[number % len(orders)] for number in range(partitions)]
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    new = NewTopic("t", partitions, replica_assignment=assignment)
    admin.create_topics([new], operation_timeout=60)["t"].result(90)


def _wait_in_sync(cluster: ReplicatedCluster, count: int) -> None:
    """Wait until every node reports all replicas in sync."""
    for node in cluster.running:
        admin = AdminClient({"bootstrap.servers": node.address})

        def are_in_sync(admin: AdminClient = admin) -> bool:
            partitions = admin.list_topics("t", timeout=10).topics["t"].partitions
            return len(partitions) == count and all(
                len(partition.isrs) == 3 and partition.leader > 0
                for partition in partitions.values()
            )

        eventually(are_in_sync, "every replica is in sync", SECONDS_MAX)


def _kill_leader(cluster: ReplicatedCluster, preferred: int) -> dict[str, float]:
    """Kill a node that leads partitions; return their pauses without writes."""
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    partitions = admin.list_topics("t", timeout=10).topics["t"].partitions
    leaders = [partition.leader for partition in partitions.values()]
    victim = preferred if preferred in leaders else max(set(leaders), key=leaders.count)
    missing = {index for index, partition in partitions.items() if partition.leader == victim}
    led = len(missing)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(WireClient(node.port))
            for node in cluster.running
            if node.broker_id != victim
        ]
        for client in clients:
            client.socket.settimeout(SECONDS_MAX)
        cluster.nodes[victim].kill()
        killed = time.monotonic()
        first = 0.0
        while missing:
            for client in clients:
                if missing:
                    missing -= _acknowledged(client, missing)
                if len(missing) < led and not first:
                    first = time.monotonic() - killed
            if time.monotonic() - killed > SECONDS_MAX:
                raise TimeoutError(f"{len(missing)} partitions take no writes")
            time.sleep(RETRY_SECONDS)
        seconds = time.monotonic() - killed
    return {"led": led, "first_s": round(first, 2), "seconds": round(seconds, 2)}


def _acknowledged(client: WireClient, partitions: Iterable[int]) -> set[int]:
    """Produce a record to each partition; return those that acknowledge it."""
    data = [
        build(produce.PartitionProduceData, index=index, records=batch_of(b"x"))
        for index in sorted(partitions)
    ]
    topic = build(produce.TopicProduceData, name="t", partition_data=tuple(data))
    answer = client.call(
        build(
            produce.ProduceRequest,
            acks=-1,
            timeout=milliseconds(ACK_TIMEOUT_MS),
            topic_data=(topic,),
        )
    )
    results = answer.responses[0].partition_responses
    return {result.index for result in results if result.error_code is ErrorCode.none}


if __name__ == "__main__":
    main()
