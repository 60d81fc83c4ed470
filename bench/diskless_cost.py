"""Measures the CPU of diskless topics beside replicated ones: bench/results/diskless_cost.json.

Three nodes, all of their processes counted. Their object store is a folder, or with ``--s3`` an
emulator of S3 whose PUTs take as long as S3's (its time is not counted). Producers send with
acks=all to a topic with three replicas, a diskless topic, and a diskless topic with three replicas.
Clients are raw connections with five requests in flight each, and librdkafka with its own defaults
and with the Java producer's. Their time is not counted. With ``--s3`` raw connections have
``AHEAD_BYTES`` in flight: an answer takes some 150 ms, and a rate like that of the replicated
topic, which the figure needs, is many requests in that time.

A diskless topic's segments are sealed at 64 MiB and tiered at once, a replicated topic's at 1 GiB,
after the seconds that are measured. So a replicated topic has that work still before it, and a
diskless one does it within the figure. With ``--tiered`` both have segments of 64 MiB, and each
figure ends when the nodes have nothing left to do: all work of a record is in it, for both.

Without ``--rate`` clients send as fast as nodes answer. S3 takes longer than replicas do, so a
diskless topic gets a smaller rate, and the work that nodes do each second (event loops, leases,
heartbeats) weighs more in its figure. With ``--rate`` all topics get the same bytes a second from
the raw connections; a figure is refused if its topic does not keep up.

The topics take turns within a round, because a machine may become several times slower between
two minutes. What counts is the median of the rounds' ratios to the replicated topic. Each figure
begins with nodes at rest: after the request to delete the topic before was answered they go on
for two seconds, and the first deletion starts their tier workers, half a second of a processor.
What is printed of a figure has its parts: the leader's node, the other nodes, their workers.
The nodes' hot path is compiled, as in a wheel.

With ``--s3`` each round ends with bare loops, which do nothing but move and check the bytes of
batches of 1 MB: no broker is cheaper, and their ratio is the least that can be expected there.

    python -m bench.diskless_cost [--rounds 5] [--seconds 2.0] [--only REGEX] [--rate MB/s]
        [--s3] [--tiered]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from bench import bare_puts, slow_puts, usage
from bench.free_memory import touch_free_memory
from bench.raw_producers import RawProducers, build_records
from bench.replicated import (
    CONNECTIONS,
    DEFAULTS,
    IN_FLIGHT,
    JAVA,
    LIBRDKAFKA,
    QUEUED_RECORDS_MAX,
    RECORD_SIZE_BYTES,
    WARM_SECONDS,
    produce_with,
)
from bench.sustained import bare_loops
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tools.compiled import write_overlay

BATCH_SIZES_BYTES = (1 << 10, 16 << 10, 64 << 10, 1_000_000)  # the records
AHEAD_BYTES = 4_000_000  # of a connection to S3's pace
RATE = 5_000  # records of 1 KiB a second, a moderate load
KEPT_RATE_MIN = 0.9  # of ``--rate``, or a figure says nothing about that rate
SEGMENT_BYTES = 64 << 20  # with ``--tiered``
LOOP_BATCHES, LOOP_OBJECTS = 500, 120  # of the bare loops: half a GB
REST_SECONDS, REST_CPU = 0.5, 0.1  # nodes that use less of a processor have nothing left to do
REST_SECONDS_MAX = 30.0
RESULTS = Path(__file__).parent / "results" / "diskless_cost.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of topic."""

    name: str
    replicas: int
    is_diskless: bool


REPLICATED = Kind("replicated RF 3", 3, False)
KINDS = (REPLICATED, Kind("diskless RF 1", 1, True), Kind("diskless RF 3", 3, True))

Load = Callable[[ReplicatedCluster, str, float], int]  # returns the bytes of the records


Costs = dict[str, dict[str, list[float]]]  # CPU-seconds per GB of each round, by load and kind


def main() -> None:
    """Measure, print and write."""
    arguments = _arguments()
    touch_free_memory()
    ahead_bytes = AHEAD_BYTES if arguments.s3 else 0
    loads = {
        name: load
        for name, load in _loads(ahead_bytes, arguments.rate).items()
        if re.search(arguments.only, name)
    }
    kinds = [kind for kind in KINDS if re.search(arguments.kinds, kind.name)]
    found: Costs = {load: {kind.name: [] for kind in kinds} for load in loads}
    loops: list[tuple[float, float]] = []
    with _cluster(at_s3=arguments.s3) as (cluster, environment):
        for number in range(arguments.rounds):
            for at, (name, load) in enumerate(loads.items()):
                for kind in kinds:
                    costs, rate = _measure(
                        cluster,
                        kind,
                        f"{number}-{at}",
                        load,
                        arguments.seconds,
                        is_tiered=arguments.tiered,
                    )
                    found[name][kind.name].append(sum(costs.values()))
                    _print_costs(f"{number} {name}, {kind.name}", costs, rate)
            if arguments.s3:
                loops.append(_bare_loops(environment))
    _report(found, loops)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diskless_cost")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="a regular expression of loads")
    parser.add_argument("--kinds", default="", help="a regular expression of topics")
    parser.add_argument("--rate", type=float, help="MB/s of raw connections, for all topics")
    parser.add_argument("--s3", action="store_true", help="S3 at its pace, not a folder")
    parser.add_argument("--tiered", action="store_true", help="with the tier's work of all topics")
    return parser.parse_args()


def _print_costs(what: str, costs: Mapping[str, float], rate: float) -> None:
    """Print the CPU-seconds per GB of one measurement, and each role's part of them."""
    parts = ", ".join(f"{role} {part:.2f}" for role, part in costs.items())
    total = sum(costs.values())
    print(f"{what}: {total:.3f} s/GB at {rate:.0f} MB/s ({parts})", flush=True)


def _report(found: Costs, loops: Sequence[tuple[float, float]]) -> None:
    """Print the medians of all rounds, and write them."""
    figures: dict[str, object] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    for name, costs in found.items():
        figures[name] = summary = _summary(costs)
        print(f"{name}: {json.dumps(summary)}", flush=True)
    if loops:
        figures["bare loops: s/GB, replicated and diskless"] = loops
        ratio = statistics.median(diskless / replicated for replicated, diskless in loops)
        print(f"bare loops, batches of 1 MB: ratio {ratio:.2f}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


@contextmanager
def _cluster(*, at_s3: bool) -> Iterator[tuple[ReplicatedCluster, Mapping[str, str]]]:
    """Yield three nodes and their environment."""
    environment = {"PYTHONPATH": str(write_overlay())}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        objects = None
        if at_s3:
            environment |= stack.enter_context(slow_puts.bucket()).environment
            objects = f"s3://{slow_puts.BUCKET}/cost"
        cluster = replicated_cluster(
            folder, config=DEFAULTS, environment=environment, object_store=objects
        )
        yield stack.enter_context(cluster), environment


def _bare_loops(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the CPU-seconds per GB of the loops for three replicas, and for a diskless topic."""
    core = max(os.sched_getaffinity(0))
    replicated = bare_loops.measure(LOOP_BATCHES, follower_count=2, client_core=core)
    puts = bare_puts.measure(slow_puts.BUCKET, LOOP_OBJECTS, environment)
    costs = sum(replicated), replicated.first_replica + puts
    print(f"bare loops: {costs[0]:.3f} and {costs[1]:.3f} s/GB", flush=True)
    return costs


def _summary(costs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return CPU-seconds per GB, and the ratios to the replicated topic."""
    base = costs.get(REPLICATED.name)
    found = {f"{kind}: s/GB": round(statistics.median(some), 3) for kind, some in costs.items()}
    for kind, some in costs.items():
        if base is not None and kind != REPLICATED.name:
            ratios = [one / other for one, other in zip(some, base, strict=True)]
            found[f"{kind}: ratio"] = round(statistics.median(ratios), 3)
    return found


def _measure(
    cluster: ReplicatedCluster,
    kind: Kind,
    suffix: str,
    load: Load,
    seconds: float,
    *,
    is_tiered: bool,
) -> tuple[dict[str, float], float]:
    """Return CPU-seconds for 10^9 bytes of records, by the processes' roles, and the rate."""
    topic = f"{kind.name.replace(' ', '-')}-{suffix}"
    settings: dict[str, Any] = {"diskless_enable": "true" if kind.is_diskless else "false"}
    if is_tiered:
        settings["segment_bytes"] = str(SEGMENT_BYTES)
    cluster.create(topic, replicas=kind.replicas, **settings)
    try:
        cluster.produce(topic, [b"first"], **{"message.timeout.ms": 30_000})  # It is led then.
        load(cluster, topic, WARM_SECONDS)
        _wait_for_rest(cluster)
        leader = cluster.node_leading(topic).pid
        before = _cpu_by_role(cluster, leader)
        began_s = time.monotonic()
        sent_bytes = load(cluster, topic, seconds)
        rate = sent_bytes / (time.monotonic() - began_s) / 1e6
        if is_tiered:
            _wait_for_rest(cluster)
        used = {
            role: seconds - before.get(role, 0.0)
            for role, seconds in _cpu_by_role(cluster, leader).items()
        }
        return {role: seconds / sent_bytes * 1e9 for role, seconds in used.items()}, rate
    finally:
        # The next topic must not be measured with this one's work.
        admin = AdminClient({"bootstrap.servers": cluster.addresses})
        admin.delete_topics([topic])[topic].result(30)


def _cpu_by_role(cluster: ReplicatedCluster, leader: int) -> dict[str, float]:
    """Return the CPU-seconds of all processes so far, by what they are to the leader's topic."""
    found: dict[str, float] = {}
    for node in cluster.running:
        # A worker starts when it is first needed, and is counted from then on.
        for pid in usage.process_tree(node.pid):
            role = "leader" if pid == leader else "other nodes"
            if pid != node.pid:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                role = "WAL workers" if b"wal.sock" in command else "other workers"
            found[role] = found.get(role, 0.0) + usage.cpu_seconds([pid])
    return found


def _cpu_seconds(cluster: ReplicatedCluster) -> float:
    return sum(_cpu_by_role(cluster, leader=0).values())


def _wait_for_rest(cluster: ReplicatedCluster) -> None:
    ends = time.monotonic() + REST_SECONDS_MAX
    used, quiet_count = _cpu_seconds(cluster), 0
    while quiet_count < 3:  # A copy waits a second for the next look at the segments.
        if time.monotonic() > ends:
            raise TimeoutError(f"the nodes are not at rest after {REST_SECONDS_MAX} s")
        time.sleep(REST_SECONDS)
        before, used = used, _cpu_seconds(cluster)
        quiet_count = quiet_count + 1 if used - before < REST_CPU * REST_SECONDS else 0


def _loads(ahead_bytes: int, rate_mb: float | None) -> dict[str, Load]:
    loads: dict[str, Load] = {
        f"batches of {size_bytes} bytes": functools.partial(
            _raw,
            size_bytes=size_bytes,
            in_flight=max(IN_FLIGHT, ahead_bytes // size_bytes),
            rate_mb=rate_mb,
        )
        for size_bytes in BATCH_SIZES_BYTES
    }
    for name, settings in (("librdkafka", LIBRDKAFKA), ("Java", JAVA)):
        for pace, rate in (("full speed", None), ("a moderate rate", RATE)):
            load = functools.partial(_librdkafka, settings, rate)
            loads[f"the defaults of {name}, {pace}"] = load
    return loads


def _raw(
    cluster: ReplicatedCluster,
    topic: str,
    seconds: float,
    *,
    size_bytes: int,
    in_flight: int,
    rate_mb: float | None,
) -> int:
    address = ("127.0.0.1", cluster.node_leading(topic).port)
    batch = build_records(size_bytes)
    per_second = None if rate_mb is None else rate_mb * 1e6 / size_bytes
    with RawProducers(address, topic, batch, connections=CONNECTIONS, acks=-1) as producers:
        count = producers.send_for(seconds, in_flight=in_flight, per_second=per_second)
    if per_second is not None and count < KEPT_RATE_MIN * per_second * seconds:
        raise RuntimeError(
            f"{topic} took {count * size_bytes / seconds / 1e6:.0f} MB/s of {rate_mb:.0f}"
        )
    return count * size_bytes


def _librdkafka(
    settings: Mapping[str, int],
    rate: int | None,
    cluster: ReplicatedCluster,
    topic: str,
    seconds: float,
) -> int:
    queue = {"queue.buffering.max.messages": QUEUED_RECORDS_MAX}
    producers = [cluster.producer(**settings, **queue) for _ in range(CONNECTIONS)]
    return produce_with(producers, topic, seconds, rate) * RECORD_SIZE_BYTES


if __name__ == "__main__":
    main()
