"""Measures how long producers wait while leads of diskless partitions change nodes.

Three real nodes with the default settings, on SQLite and a folder. A librdkafka producer sends to
all partitions all the time. A node is ended, with ``kill -9`` or SIGTERM, at another time between
two renewals of its lease in each turn. The pause is the time from there until the last one of the
partitions that it led has acknowledged a record again. Then the node is started, and the next turn
begins once it leads its share. Other work on the machine can only lengthen it.

With ``--tail-mib`` every partition of the node gets so many bytes in each turn before it is ended.
They are in its chain alone then, so its heirs have nothing of them.

    python -m bench.lead_changes [--turns N] [--partitions N] [--tail-mib N] [kill|stop]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess

TOPIC = "t"
KINDS = ("kill", "stop")
PARTITIONS = 9
TURNS = 21
WAIT_SECONDS_MAX = 90.0
RENEWAL_SECONDS = 3.0
UNACKED_MAX = 300
VALUE_BYTES = 64 << 10  # of a record of a tail
RESULTS = Path(__file__).parent / "results" / "lead_changes.json"


class Scale(NamedTuple):
    """The size of a measurement."""

    turns: int
    partitions: int
    tail_mib: float  # that each partition gets in a turn


class Sending:
    """A producer that sends to all partitions until it is ended."""

    def __init__(self, bootstrap: str, partition_count: int) -> None:
        self.acked_at = [0.0] * partition_count  # of the last ack
        self.failures = 0
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Send nothing more, and wait for what was sent."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            count = len(self.acked_at)
            for partition in range(count if len(self._producer) < UNACKED_MAX + count else 0):
                self._producer.produce(
                    TOPIC, b"v", partition=partition, on_delivery=self._on_delivery
                )
            self._producer.poll(0.02)
        self._producer.flush(60)

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.failures += 1
        else:
            self.acked_at[message.partition()] = time.monotonic()  # type: ignore[attr-defined]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lead_changes",
        description="Measures how long producers wait while leads of diskless partitions move.",
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="how nodes end (both, in turn)")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"of each ({TURNS})")
    parser.add_argument(
        "--partitions",
        type=int,
        default=PARTITIONS,
        metavar="N",
        help=f"of the topic ({PARTITIONS})",
    )
    parser.add_argument(
        "--tail-mib", type=float, default=0, metavar="N", help="of each partition that is moved (0)"
    )
    arguments = parser.parse_args()
    results = {}
    for kind in KINDS if arguments.kind is None else (arguments.kind,):
        with tempfile.TemporaryDirectory() as folder:
            scale = Scale(arguments.turns, arguments.partitions, arguments.tail_mib)
            results[kind] = _measure(Path(folder), kind, scale)
            print(f"{kind}: {json.dumps(results[kind])}", flush=True)
    if arguments.partitions == PARTITIONS and not arguments.tail_mib:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def _measure(folder: Path, kind: str, scale: Scale) -> dict[str, object]:
    nodes = {
        broker_id: NodeProcess(
            folder / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
        )
        for broker_id in (1, 2, 3)
    }
    pauses: list[float] = []
    loads: list[float] = []
    with ExitStack() as stack:
        for node in nodes.values():
            stack.enter_context(node)
        bootstrap = ",".join(node.address for node in nodes.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(TOPIC, scale.partitions, -1, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(30)
        sending = Sending(bootstrap, scale.partitions)
        stack.callback(sending.end)
        for turn in range(scale.turns):
            broker_id = 1 + turn % 3
            led = _wait_for_leads(admin, broker_id, scale.partitions // 3)
            _wait_for_acks(sending)
            _lengthen(bootstrap, led, scale.tail_mib)
            time.sleep(3 + RENEWAL_SECONDS * turn / scale.turns)
            loads.append(os.getloadavg()[0])
            pauses.append(_end(nodes[broker_id], kind, led, sending))
            print(f"{kind} {turn}: {pauses[-1]:.2f} s, load {loads[-1]:.1f}", flush=True)
            nodes[broker_id].start()
        failures = sending.failures
    ordered = sorted(pauses)
    return {
        "turns": scale.turns,
        "partitions": scale.partitions,
        "tail_mib": scale.tail_mib,
        "median_s": round(median(ordered), 2),
        "p99_s": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "longest_s": round(ordered[-1], 2),
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "failed_records": failures,
    }


def _lengthen(bootstrap: str, partitions: list[int], tail_mib: float) -> None:
    """Send so many bytes to each of the partitions, and wait until they are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "acks": "all"})
    for _ in range(int(tail_mib * (1 << 20) / VALUE_BYTES)):
        for partition in partitions:
            while True:
                try:
                    producer.produce(TOPIC, os.urandom(VALUE_BYTES), partition=partition)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0, "the tails are not acknowledged"


def _wait_for_leads(admin: AdminClient, broker_id: int, share: int) -> list[int]:
    """Return the partitions that the broker leads, once it leads its share."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found = admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
        led = [number for number, one in found.items() if one.leader == broker_id]
        if len(led) >= share:
            return led
        assert time.monotonic() < deadline, f"broker {broker_id} leads {led} only"
        time.sleep(0.2)


def _wait_for_acks(sending: Sending) -> None:
    """Wait until every partition has acknowledged something: all nodes lead by then."""
    began = time.monotonic()
    while min(sending.acked_at) < began:
        assert time.monotonic() < began + WAIT_SECONDS_MAX, "no ack of a partition"
        time.sleep(0.05)


def _end(node: NodeProcess, kind: str, led: list[int], sending: Sending) -> float:
    """End the process; return the seconds until all that it led have acknowledged again."""
    began = time.monotonic()
    if kind == "kill":
        node.kill()
        ended = time.monotonic()
    else:
        # Its acks until it has handed over count too: the longest pause of a partition does.
        stopping = threading.Thread(target=node.stop)
        stopping.start()
        longest = _longest_pause(led, sending, stopping)
        stopping.join()
        return longest
    deadline = began + WAIT_SECONDS_MAX
    while any(sending.acked_at[number] <= ended for number in led):
        assert time.monotonic() < deadline, "no ack of a partition"
        time.sleep(0.005)
    return max(sending.acked_at[number] for number in led) - began


def _longest_pause(led: list[int], sending: Sending, stopping: threading.Thread) -> float:
    """Return the longest time between two acks of a partition while the node stops."""
    last = {number: sending.acked_at[number] for number in led}
    longest = 0.0
    quiet_from: float | None = None
    while quiet_from is None or time.monotonic() - quiet_from < 2:
        for number in led:
            acked_at = sending.acked_at[number]
            longest = max(longest, acked_at - last[number], time.monotonic() - acked_at)
            last[number] = acked_at
        if quiet_from is None and not stopping.is_alive():
            quiet_from = time.monotonic()
        time.sleep(0.005)
    return longest


if __name__ == "__main__":
    main()
