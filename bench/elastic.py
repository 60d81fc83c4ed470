"""Measures how fast a diskless cluster grows and shrinks; writes bench/results/elastic.json.

``tidelog up`` runs two nodes, and one producer writes to every partition of a diskless topic all
the time, idempotent, with acks=all. A node joins (``tidelog node scale``), and later leaves:

- *join to share*: from the node's first word to the moment at which it leads its part;
- *pause*: the longest time between two acknowledgements of one partition while leads move, beside
  the longest one before. A node that leaves uploads what is pending, so its last PUT is in between;
- *leave*: from the request to the end of its process;
- records that were refused, or are there twice: none may be.

Nothing is reassigned. Times are on the wall clock: other work on the machine only lengthens them,
so the ratio to the quiet time before says more than the seconds. A trial takes a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.local_cluster.cluster_size import ask_for_nodes

from bench.command_line import parser_of
from tools.ports import free_ports

TOPIC, PARTITIONS = "t", 24
NODES, MORE = 2, 3
RECORD = b"x" * 1_000
SEND_EVERY_SECONDS = 0.02  # to each partition
QUIET_SECONDS = 6.0  # before each change, and after it
SHARE_SECONDS_GOAL, PAUSE_SECONDS_GOAL = 10.0, 1.0
SECONDS_MAX = 120.0
POLL_SECONDS = 0.05
RESULTS = Path(__file__).parent / "results" / "elastic.json"


def main() -> None:
    """Measure and print."""
    trial_count: int = _parser().parse_args().trials
    found = []
    for number in range(trial_count):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder) / "data"))
        print(f"trial {number + 1}: {json.dumps(found[-1])}", flush=True)
    results = {
        "partitions": PARTITIONS,
        "goals_s": {"join_to_share": SHARE_SECONDS_GOAL, "pause": PAUSE_SECONDS_GOAL},
        "trials": found,
        "worst": {
            name: max(trial[name] for trial in found)
            for name in ("join_to_share_s", "join_pause_s", "leave_pause_s", "leave_s")
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results["worst"]))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("elastic", __doc__)
    parser.add_argument("trials", nargs="?", type=int, default=3, metavar="N", help="how many (3)")
    return parser


def measure(data_dir: Path) -> dict[str, float]:
    """Return the times of one node that joins and leaves again."""
    port = free_ports(MORE)
    address = f"127.0.0.1:{port}"
    with _running(data_dir, port):
        admin = AdminClient({"bootstrap.servers": address})
        new = NewTopic(TOPIC, PARTITIONS, 1, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(SECONDS_MAX)
        with _writing(address) as acks:
            _until(lambda: len(acks.times) == PARTITIONS, "every partition is acknowledged")
            time.sleep(QUIET_SECONDS)
            join_asked = time.monotonic()
            ask_for_nodes(data_dir, MORE, lambda _: None)
            joined = time.monotonic()
            _until(lambda: _leads(admin)[MORE] >= PARTITIONS // MORE, "it leads its share")
            shared = time.monotonic()
            time.sleep(QUIET_SECONDS)
            leave_asked = time.monotonic()
            ask_for_nodes(data_dir, NODES, lambda _: None)
            left = time.monotonic()
            _until(lambda: _leads(admin)[MORE] == 0, "others lead")
            time.sleep(QUIET_SECONDS)
            end = time.monotonic()
        count = _stored(address)
    quiet = acks.longest_gap(join_asked - QUIET_SECONDS, join_asked)
    join_pause = acks.longest_gap(joined, shared + QUIET_SECONDS)
    leave_pause = acks.longest_gap(leave_asked, end)
    return {
        "join_to_share_s": round(shared - joined, 2),
        "quiet_pause_s": round(quiet, 3),
        "join_pause_s": round(join_pause, 3),
        "join_pause_ratio": round(join_pause / quiet, 1),
        "leave_pause_s": round(leave_pause, 3),
        "leave_pause_ratio": round(leave_pause / quiet, 1),
        "leave_s": round(left - leave_asked, 2),
        "acknowledged": acks.count,
        "refused": acks.refused,
        "stored": count,
    }


@dataclass(slots=True)
class Acks:
    """The acknowledgements that a producer got."""

    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: int = 0

    @property
    def count(self) -> int:
        """The number of them."""
        return sum(map(len, self.times.values()))

    def take(self, error: KafkaError | None, message: Message) -> None:
        """Note one, or a refusal."""
        partition = message.partition()
        if error is not None or partition is None:
            self.refused += 1
        else:
            self.times[partition].append(time.monotonic())

    def longest_gap(self, begin: float, end: float) -> float:
        """Return the longest time without an acknowledgement of some partition, in seconds."""
        return max(longest_gap(times, begin, end) for times in self.times.values())


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time in ``[begin, end]`` without one of these ordered times."""
    inside = [begin, *(at for at in times if begin < at < end), end]
    return max(after - before for before, after in pairwise(inside))


@contextmanager
def _running(data_dir: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tidelog_cli", "up", "--nodes", str(NODES)]
    command += ["--port", str(port), "--data-dir", str(data_dir), "--no-console", "--no-http"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert b" ready on " in process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)


@contextmanager
def _writing(address: str) -> Iterator[Acks]:
    """Write to all partitions from a thread of its own for the length of the block."""
    acks, stop = Acks(), threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "topic.metadata.refresh.fast.interval.ms": 50,
        }
    )

    def write() -> None:
        while not stop.is_set():
            for partition in range(PARTITIONS):
                try:
                    producer.produce(TOPIC, RECORD, partition=partition, on_delivery=acks.take)
                except BufferError:
                    producer.poll(SEND_EVERY_SECONDS)
            due = time.monotonic() + SEND_EVERY_SECONDS
            while (left := due - time.monotonic()) > 0:
                producer.poll(left)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acks
    finally:
        stop.set()
        thread.join()
        producer.flush(SECONDS_MAX)


def _leads(admin: AdminClient) -> Mapping[int, int]:
    partitions = admin.list_topics(TOPIC, timeout=SECONDS_MAX).topics[TOPIC].partitions
    return Counter(partition.leader for partition in partitions.values())


def _stored(address: str) -> int:
    """Return how many records the topic has."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=SECONDS_MAX)
            for number in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    return sum(end for _, end in ends)


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {SECONDS_MAX:g} s it is not so that {what}")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
