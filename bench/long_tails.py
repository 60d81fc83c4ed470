"""Measures how long producers wait for an heir that has nothing of the dead leader's partitions.

Two real nodes on SQLite and a folder. All partitions of a diskless topic have one replica, on the
first node. A producer fills them, so that nothing of it is tiered, and the node is ended with
``kill -9``. The heir refills its logs from the chain before it leads, short tails first. The pause
is the time from the kill to the next acknowledgement of a partition. One partition more has a
single record: it shows what a short tail waits beside long ones. Other work on the machine can only
lengthen the pauses, so the heir's CPU time is measured too (the node's, without its workers). All
shapes take five minutes. Writes bench/results/long_tails.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.command_line import parser_of
from tests.support.node_process import NodeProcess

TOPIC = "t"
SHAPES = ((1, 1), (16, 1), (64, 1), (256, 1), (1, 60), (64, 60), (256, 60))  # MiB and partitions
VALUE_BYTES = 10_000
WAITING_MAX = 300  # records that are not acknowledged yet
WAIT_SECONDS_MAX = 120.0
QUIET_SECONDS = 3.0
RESULTS = Path(__file__).parent / "results" / "long_tails.json"
CLIENT = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "message.timeout.ms": 300_000,
    "log_level": 0,
}


class Sending:
    """A producer that knows when each partition has acknowledged something last."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.acked_at = [0.0] * partitions
        self.failures = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, **CLIENT})

    def send(self, partition: int, value: bytes) -> None:
        """Send the record once few wait for their acknowledgement."""
        while len(self._producer) > WAITING_MAX:
            self._producer.poll(0.01)
        self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_delivery)

    def wait_since(self, began: float) -> None:
        """Wait until every partition has acknowledged something since that time."""
        while min(self.acked_at) < began:
            self._producer.poll(0.005)
            assert time.monotonic() < began + WAIT_SECONDS_MAX, "no ack of a partition"

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0, "records without an ack"

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.failures += 1
        else:
            self.acked_at[message.partition()] = time.monotonic()  # type: ignore[attr-defined]


def main() -> None:
    """Measure and print."""
    results = []
    for mebibytes, partitions in _parser().parse_args().shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(_measure(Path(folder), mebibytes, partitions))
        print(json.dumps(results[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("long_tails", __doc__)
    usual = " ".join(f"{mebibytes}:{partitions}" for mebibytes, partitions in SHAPES)
    parser.add_argument(
        "shapes",
        nargs="*",
        type=_shape,
        metavar="MIB:PARTITIONS",
        help=f"what the heir refills ({usual})",
    )
    return parser


def _shape(text: str) -> tuple[int, int]:
    """Return mebibytes and partitions. Raises ``ArgumentTypeError``."""
    mebibytes, _, partitions = text.partition(":")
    if not (mebibytes.isdecimal() and partitions.isdecimal() and int(partitions)):
        raise argparse.ArgumentTypeError(f"{text!r} is not such as 64:1, 64 MiB in one partition")
    return int(mebibytes), int(partitions)


def _measure(folder: Path, mebibytes: int, partitions: int) -> dict[str, object]:
    leader, heir = (
        NodeProcess(
            folder / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
            config={"auto.leader.rebalance.enable": "false"},
        )
        for broker_id in (1, 2)
    )
    with ExitStack() as stack:
        for node in (leader, heir):
            stack.enter_context(node)
        bootstrap = f"{leader.address},{heir.address}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = {"diskless.enable": "true"}
        # The last partition is the one with the short tail.
        new = NewTopic(
            TOPIC, partitions + 1, replica_assignment=[[1]] * (partitions + 1), config=config
        )
        admin.create_topics([new])[TOPIC].result(60)
        sending = Sending(bootstrap, partitions + 1)
        value = os.urandom(VALUE_BYTES)
        sending.send(partitions, b"short")
        for number in range(max(partitions, (mebibytes << 20) // VALUE_BYTES)):
            sending.send(number % partitions, value)
        sending.flush()
        time.sleep(QUIET_SECONDS)
        cpu_before, load = heir.cpu_seconds(), os.getloadavg()[0]
        killed = time.monotonic()
        leader.kill()
        for partition in range(partitions + 1):
            sending.send(partition, b"next")
        sending.wait_since(killed)
        pauses = [at - killed for at in sending.acked_at]
        return {
            "mebibytes": mebibytes,
            "partitions": partitions,
            "short_tail_s": round(pauses[-1], 2),
            "first_s": round(min(pauses[:-1]), 2),
            "last_s": round(max(pauses[:-1]), 2),
            "heir_cpu_s": round(heir.cpu_seconds() - cpu_before, 2),
            "load": round(load, 1),
            "failed_records": sending.failures,
        }


if __name__ == "__main__":
    main()
