"""Loads a node for half an hour, and checks that its use of resources stays flat: ``make soak``.

One node on SQLite and a folder always has retention, eviction, tiering and compaction to do
(``shape`` has the topics). Clients are separate processes:

load    fills ``tail``, first as fast as it can, then at a fixed pace that does not wait for answers
side    writes the compacted topics, one of them in transactions
group   reads the tail of all topics, checks every record, commits
cold    reads a partition from its earliest record at intervals; visitors write, join and leave

First the **maximum** is measured: for ``--maximum-seconds`` the load is as fast as the
acknowledgements. The node's maximum is the least of the acknowledged, consumed and tiered rates,
because a log that is tiered or read more slowly than it grows fills the disk. Until the group has
caught up nothing of ``tail`` expires: a producer that is faster than the group must not outrun it
by more than the retention, and make it skip records. Then ``--share`` of the maximum, in bytes per
second, is **held** for ``--seconds``. Every 5 s a row is written: memory,
descriptors and threads of node and tier worker, their CPU, latencies, segments, disk, metadata.

The rows after a warm-up (300 s, or a third of a shorter run) are judged by their trend
(``verdicts``). Allowed growth per hour, as a part of the median, and the noise floor:

memory        5 %, 2 MB   growth that doubles a node in less than a day fails: at 100 MB that is
                          5 MB per hour. The floor is 4 MB for the worker: its allocator keeps up
                          to 128 MB on purpose, and takes a megabyte or two for a new maximum of
                          concurrent ranges
descriptors   0 %, 2      a leak of one per cold reader and visitor gives ten per minute
threads       0 %, 4      pools fill up at their first use; a thread for each client is hundreds
latency       20 %, 1 ms and 10 ms (p99, 50 ms end to end): it includes the machine's drift; a
                          structure that grows without bound shows within hours
disk          5 %, 300 MB, and never more than 6 GB: retention deletes whole segments
metadata      10 %, 0.5 MB (the file), 2 MB (its log)

At the end the content is checked: the group has read every acknowledged record of ``tail`` once,
in order and as written; committed offsets are the logs' ends; the newest record of every key of
the compacted topics exists; no aborted record was read; ``tidelog verify`` finds no error in the
tier; the load was held; the tier worker is still the same process.

Writes bench/results/soak.csv, soak.png and soak.json, and prints a table. The exit status is 1 if
a verdict fails. Ends by itself, some minutes after ``--maximum-seconds`` and ``--seconds``.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.process import Node, running_node
from bench.soak.client import Client
from bench.soak.group import GROUP
from bench.soak.observed import Row, Watched
from bench.soak.plot import draw
from bench.soak.shape import (
    ABORTED,
    DISK_BYTES_MAX,
    LEDGER,
    LEDGER_KEYS,
    TABLE,
    TABLE_KEYS,
    TAIL,
    TAIL_PARTITIONS,
    TAIL_RECORD_BYTES,
    TOPICS,
    read_value,
)
from bench.soak.verdicts import Limit, Verdict, judge

CLIENTS = ("load", "side", "group", "cold")
SAMPLE_SECONDS = 5.0
WARM_UP_SECONDS = 300.0
RAMP_SECONDS = 10.0  # of the maximum, not counted
SETTLE_SECONDS_MAX = 180.0  # for the group and the tier to catch up
BACKLOG_BYTES_MAX = 3_000_000_000  # of records that are not tiered while the maximum is measured
HELD_MIN = 0.98  # of the wanted bytes
ALL_BYTES = "-1"  # of ``retention.bytes``
RESULTS = Path(__file__).parents[1] / "results"
NODE_SETTINGS = {
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "5000",
    "remote.cache.bytes": str(256 << 20),
    # The worker keeps the memory of its maximum of concurrent ranges: small ranges make that small
    # compared with a leak.
    "remote.chunk.bytes": str(1 << 20),
    "offsets.retention.check.interval.ms": "60000",
    # Short, so that the run shows the release of expired producer state.
    "producer.id.expiration.ms": "120000",
}
PROCESSES = ("node", "worker")
LIMITS = (
    *(
        Limit(f"{name} {kind} MB", 0.05, floor)
        for name, floor in (("node", 2.0), ("worker", 4.0))
        for kind in ("RSS", "USS")
    ),
    *(Limit(f"{name} descriptors", 0.0, 2.0) for name in ("node", "worker")),
    *(Limit(f"{name} threads", 0.0, 4.0) for name in ("node", "worker")),
    Limit("produce p50 ms", 0.2, 1.0),
    Limit("produce p99 ms", 0.2, 10.0),
    Limit("end to end p50 ms", 0.2, 1.0),
    Limit("end to end p99 ms", 0.2, 50.0),
    Limit("disk MB", 0.05, 300.0, at_most=DISK_BYTES_MAX / 1e6),
    Limit("sqlite MB", 0.1, 0.5),
    Limit("sqlite wal MB", 0.1, 2.0),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the run."""

    seconds: float
    share: float
    maximum_seconds: float
    rate_bytes: float | None  # per second; None: the share of the maximum
    is_compiled: bool  # the node's hot path, as in a wheel


@dataclass(slots=True)
class Found:
    """The results of the run."""

    options: Options
    maximum_bytes: float = 0.0  # per second
    held_bytes: float = 0.0  # per second, as wanted
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    descriptors_gained: Counter[str] = field(default_factory=Counter)  # since the warm-up

    @property
    def warm_up_seconds(self) -> float:
        """The time from which rows are judged."""
        return min(WARM_UP_SECONDS, self.options.seconds / 3)

    def verdict(self, name: str, is_good: bool, found: str) -> None:
        """Note a verdict and the figures behind it."""
        self.verdicts.append(Verdict(name, is_good, found))


class Soak:
    """One node, its clients, and the phases of the run."""

    def __init__(self, node: Node, data_dir: Path, found: Found, stack: ExitStack) -> None:
        self._node = node
        self._watched = Watched(node.pid, data_dir)
        self._data_dir = data_dir
        self._found = found
        self._load, self._side, self._group, self._cold = self._clients = [
            Client(f"bench.soak.{name}", node.bootstrap)
            for name in ("load", "side", "group", "cold")
        ]
        for client in self._clients:
            stack.callback(client.kill)
        self._worker_pid: int | None = None

    def run(self) -> None:
        """Measure the maximum, hold the load, judge the figures."""
        found, options = self._found, self._found.options
        self._wait_until_all_report()
        if options.rate_bytes is None:
            self._retain_tail(ALL_BYTES)
            found.maximum_bytes = self._find_maximum()
            self._retain_tail(TOPICS[TAIL][1]["retention.bytes"])
            found.held_bytes = options.share * found.maximum_bytes
        else:
            found.held_bytes = options.rate_bytes
        print(f"holding {found.held_bytes / 1e6:.1f} MB/s for {options.seconds:.0f} s", flush=True)
        self._hold(found.held_bytes, options.seconds)
        self._judge_series()
        self._judge_content()

    # -- the phases --

    def _wait_until_all_report(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self._worker_pid is None or not all(client.last for client in self._clients):
            if time.monotonic() > deadline:
                raise RuntimeError("not everyone has begun")
            self._wait(0.5)
            self._worker_pid = self._watched.worker_pid()

    def _find_maximum(self) -> float:
        """Return the bytes per second that the node sustains."""
        self._load.order("pace", "max")
        self._wait(RAMP_SECONDS)
        before, started = self._progress(), time.monotonic()
        is_paused = False
        while time.monotonic() - started < self._found.options.maximum_seconds:
            # A log that is tiered too slowly must not fill the disk: the tier limits the maximum.
            log_bytes = self._watched.log_bytes()
            if log_bytes > BACKLOG_BYTES_MAX and not is_paused:
                self._load.order("pace", "0")
                is_paused = True
            elif log_bytes < 0.8 * BACKLOG_BYTES_MAX and is_paused:
                self._load.order("pace", "max")
                is_paused = False
            self._wait(1.0)
        after, seconds = self._progress(), time.monotonic() - started
        self._load.order("pace", "0")
        rates = {name: (after[name] - before[name]) / seconds for name in after}
        shown = ", ".join(f"{name} {rate / 1e6:.0f} MB/s" for name, rate in rates.items())
        print(f"maximum: {shown}", flush=True)
        self._settle()
        return min(rates.values())

    def _retain_tail(self, size_bytes: str) -> None:
        """Set how much of each partition of ``tail`` is kept."""
        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            TAIL,
            incremental_configs=[
                ConfigEntry(
                    "retention.bytes",
                    size_bytes,
                    incremental_operation=AlterConfigOpType.SET,
                )
            ],
        )
        admin = AdminClient({"bootstrap.servers": self._node.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)

    def _progress(self) -> dict[str, float]:
        return {
            "acknowledged": self._load.last.get("acknowledged", 0) * TAIL_RECORD_BYTES,
            "consumed": sum(self._group.last.get("next", ())) * TAIL_RECORD_BYTES,
            "tiered": self._watched.tiered_bytes(),
        }

    def _settle(self) -> None:
        """Wait until the group and the tier have caught up with the producer."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        local_max = 2 * TAIL_PARTITIONS * int(TOPICS[TAIL][1]["local.retention.bytes"])
        while time.monotonic() < deadline:
            self._wait(5.0)
            has_read = sum(self._group.last["next"]) >= self._load.last["sent"]
            if has_read and self._watched.log_bytes() <= local_max:
                return
        raise RuntimeError(f"not settled after {SETTLE_SECONDS_MAX:.0f} s")

    def _hold(self, bytes_per_second: float, seconds: float) -> None:
        """Sample every few seconds during the load."""
        sent_before, started = self._load.last.get("sent", 0), time.monotonic()
        self._load.order("pace", str(bytes_per_second))
        before: Row = {}
        descriptors: Counter[str] | None = None
        count = int(seconds / SAMPLE_SECONDS)
        for number in range(1, count + 1):
            self._wait(max(0.0, started + number * SAMPLE_SECONDS - time.monotonic()))
            row = {"seconds": round(time.monotonic() - started, 2)} | self._watched.sample()
            for client in self._clients:
                row |= {k: v for k, v in client.last.items() if isinstance(v, float)}
            row["produced bytes"] = self._load.last["acknowledged"] * TAIL_RECORD_BYTES
            row["consumed bytes"] = sum(self._group.last["next"]) * TAIL_RECORD_BYTES
            row["cold bytes"] = self._cold.last.get("cold bytes", 0)
            if before:
                row |= _rates(before, row)
            before = row
            self._found.rows.append(row)
            if descriptors is None and row["seconds"] > self._found.warm_up_seconds:
                descriptors = self._watched.descriptor_kinds()
            if row["disk MB"] > 2 * DISK_BYTES_MAX / 1e6:
                raise RuntimeError(f"the disk fills: {row['disk MB']:.0f} MB")
            if number % 12 == 0:
                print(_line(row), flush=True)
        self._found.descriptors_gained = self._watched.descriptor_kinds() - (
            descriptors or Counter()
        )
        sent = (self._load.last["sent"] - sent_before) * TAIL_RECORD_BYTES
        # The last report may be a few seconds old.
        wanted = HELD_MIN * bytes_per_second * (seconds - 2 * SAMPLE_SECONDS)
        is_held = sent >= wanted and not self._load.last["failed"]
        self._found.verdict("load held", is_held, f"{sent / seconds / 1e6:.1f} MB/s sent")

    def _wait(self, seconds: float) -> None:
        for client in self._clients:
            client.require_alive()
        time.sleep(seconds)

    # -- the verdicts --

    def _judge_series(self) -> None:
        found = self._found
        rows = [row for row in found.rows if row["seconds"] > found.warm_up_seconds]
        for limit in LIMITS:
            judged = [row for row in rows if limit.figure in row]
            times = [row["seconds"] for row in judged]
            found.verdicts.append(judge(limit, times, [row[limit.figure] for row in judged]))

        worker_pid = self._watched.worker_pid()
        found.verdict("the same worker", worker_pid == self._worker_pid, f"pid {worker_pid}")

    def _judge_content(self) -> None:
        found, bootstrap = self._found, self._node.bootstrap
        load, side, cold = self._load.stop(), self._side.stop(), self._cold.stop()
        self._group.order("until", *map(str, load["counts"]))
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._group.last.get("final") and time.monotonic() < deadline:
            time.sleep(0.5)
        group = self._group.last if self._group.last.get("final") else self._group.stop()
        failed = load["failed"] + side["failed"]
        found.verdict("every record acknowledged", not failed, f"{failed} failed")
        found.verdict(
            "the group had each acknowledged record once and whole",
            group["next"] == load["counts"] and not group["problems"],
            f"{sum(group['next'])} of {sum(load['counts'])} {group['problems']}",
        )
        committed = _committed(bootstrap)
        found.verdict("offsets committed to the ends", committed == load["counts"], str(committed))
        found.verdict(
            "cold readers and visitors",
            not cold["problems"] and cold["rounds"] > 0 and cold["visits"] > 0,
            f"{cold['rounds']} rounds, {cold['cold bytes'] / 1e9:.2f} GB, {cold['skips']} skips, "
            f"{cold['visits']} visits {cold['problems']}",
        )
        for topic, keys, count in (
            (TABLE, TABLE_KEYS, side["table"]),
            (LEDGER, LEDGER_KEYS, side["ledger"]),
        ):
            found.verdict(
                f"newest of every key of {topic}", *_check_keys(bootstrap, topic, keys, count)
            )
        command = [sys.executable, "-m", "tidelog_cli", "verify"]
        verified = subprocess.run(
            [*command, "--data-dir", str(self._data_dir)],
            capture_output=True,
            text=True,
            check=False,
        )
        found.verdict(
            "tidelog verify",
            verified.returncode == 0,
            (verified.stdout + verified.stderr).strip()[-200:],
        )


def _rates(before: Row, row: Row) -> Row:
    """Return the rates between two rows, per second."""
    seconds = row["seconds"] - before["seconds"]

    def rate(name: str) -> float:
        return (row[name] - before.get(name, 0.0)) / seconds

    made = {
        "node cores": rate("node CPU s"),
        "produced MB/s": rate("produced bytes") / 1e6,
        "consumed MB/s": rate("consumed bytes") / 1e6,
        "cold MB/s": rate("cold bytes") / 1e6,
        "machine cores": rate("machine CPU s"),
        "stolen cores": rate("stolen CPU s"),
        "waiting for the disk": rate("disk wait s"),
        "node queued": rate("node queued s"),
    }
    if "worker CPU s" in row and "worker CPU s" in before:
        made["worker cores"] = rate("worker CPU s")
    return made


def _line(row: Row) -> str:
    shown = ("node RSS MB", "worker RSS MB", "node descriptors", "produce p99 ms", "disk MB")
    figures = ", ".join(f"{name} {row.get(name, float('nan')):.1f}" for name in shown)
    return f"{row['seconds']:.0f} s: {figures}"


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )


def _committed(bootstrap: str) -> list[int]:
    consumer = _consumer(bootstrap, GROUP)
    try:
        asked = [TopicPartition(TAIL, number) for number in range(TAIL_PARTITIONS)]
        return [one.offset for one in consumer.committed(asked, 30)]
    finally:
        consumer.close()


def _check_keys(bootstrap: str, topic: str, keys: int, count: int) -> tuple[bool, str]:
    """Return whether every key's newest record exists, for ``count`` numbers in turn."""
    newest: dict[int, int] = {}
    aborted = records = 0
    consumer = _consumer(bootstrap, "check")
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        is_through = False
        while not is_through and time.monotonic() < deadline:
            for message in consumer.consume(500, 1.0):
                if message.error() is not None:
                    is_through = True  # the end of the partition
                    continue
                number, _ = read_value(message.value() or b"")
                aborted += bool(number & ABORTED)
                newest[int(message.key() or b"")] = number
                records += 1
    finally:
        consumer.close()
    expected = {number % keys: number for number in range(max(0, count - keys), count)}
    wrong = sum(newest.get(key) != number for key, number in expected.items())
    is_good = is_through and not wrong and not aborted
    return is_good, f"{records} records, {len(newest)} keys, {wrong} wrong, {aborted} aborted"


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, count, 1, config=config) for name, (count, config) in TOPICS.items()]
    for created in admin.create_topics(topics).values():
        created.result(30)


def _write(found: Found) -> None:
    RESULTS.mkdir(exist_ok=True)
    columns = list(dict.fromkeys(name for row in found.rows for name in row))
    with (RESULTS / "soak.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows({k: round(v, 3) for k, v in row.items()} for row in found.rows)
    title = f"{found.held_bytes / 1e6:.0f} MB/s for {found.options.seconds / 60:.0f} min"
    draw(found.rows, RESULTS / "soak.png", title=title, judged_from=found.warm_up_seconds)
    figures = {
        "options": asdict(found.options),
        "maximum MB/s": round(found.maximum_bytes / 1e6, 1),
        "held MB/s": round(found.held_bytes / 1e6, 1),
        "descriptors gained since the warm-up": dict(found.descriptors_gained),
        "verdicts": [asdict(verdict) for verdict in found.verdicts],
    }
    (RESULTS / "soak.json").write_text(json.dumps(figures, indent=2) + "\n")


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Loads one node and checks that its use of resources stays flat.",
    )
    parser.add_argument("--seconds", type=float, default=1800.0, help="duration of the held load")
    parser.add_argument("--share", type=float, default=0.6, help="of the maximum")
    parser.add_argument(
        "--maximum-seconds", type=float, default=30.0, help="for measuring the maximum"
    )
    parser.add_argument("--rate", type=float, help="MB/s, instead of a share of the maximum")
    parser.add_argument("--interpreted", action="store_true", help="run the node uncompiled")
    given = parser.parse_args(arguments)
    return Options(
        seconds=given.seconds,
        share=given.share,
        maximum_seconds=given.maximum_seconds,
        rate_bytes=None if given.rate is None else given.rate * 1e6,
        is_compiled=not given.interpreted,
    )


def main() -> int:
    """Run the soak; write and print the results; return the exit status."""
    found = Found(_options(sys.argv[1:]))
    settings = [f"--set={name}={value}" for name, value in NODE_SETTINGS.items()]
    with ExitStack() as stack:
        data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = running_node(
            data_dir, "--log-level=WARNING", *settings, is_compiled=found.options.is_compiled
        )
        node = stack.enter_context(running)
        _create_topics(node.bootstrap)
        try:
            Soak(node, data_dir, found, stack).run()
        finally:
            if found.rows:
                _write(found)
    for verdict in found.verdicts:
        print(f"{'ok  ' if verdict.is_good else 'FAIL'} {verdict.name}: {verdict.found}")
    return 0 if all(verdict.is_good for verdict in found.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
