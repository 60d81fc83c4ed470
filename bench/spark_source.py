"""Measures a scan of one partition in Spark; writes bench/results/spark_source.json.

The same records are read in six ways, in turns, by one Spark session with as many concurrent
tasks as the machine has cores:

tidelog           ``format("tidelog")``: segment and index objects in a folder, like Parquet's
tidelog, S3       copies of them in MiniStack's S3, behind a server that counts GETs; both take
                  their CPU time from the same cores
kafka, node       Spark's Kafka source, which reads from a Tidelog node's local log
kafka, Kafka      the same from Apache Kafka
kafka, split      the same with ``minPartitions``: a task for each core
parquet           files that Spark wrote of the same rows, all columns, on the local disk

Each way has two queries. **sums** counts the rows and adds up the lengths of keys and values, so
that Spark receives every byte and prints none. **all** sends all columns of all rows to a sink
that drops them (``noop``). Records have a key of 16 bytes and a value of 512, compressed with lz4
by the producer. Seconds are those of the whole query with its planning. In the first passes the JVM
compiles its code; the median of the last three counts. Spark's CPU time is that of its JVM and
Python processes. Spark and its Python workers communicate through Unix domain sockets
(``spark.python.unix.domain.socket.enabled``), which Spark disables by default.

Before that, the sums are the first query of a session, with tidelog and with Spark's Kafka source
in turns: each pass has a Spark of its own that has done nothing but a sum of a range. The decoder's
machine code is stored then, as it is in a wheel, Spark's zip of pyspark has bytecode
(``tidelog_spark.pyspark_bytecode``), and ``hypothesis`` is hidden from Spark's Python processes:
kio, which reads and writes messages, imports it where it is installed.

The node always has some work (its lease, its polls of the metadata), so its CPU time without a
query is measured too. At the end the node is stopped, and the source scans once more.

    python -m bench.spark_source [--only first | --only passes]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import tidelog_spark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from tidelog.arrow.native.stored_code import machine_code

from bench import s3_shape
from bench.process import Node, running_node
from bench.s3_shape import ShapedServer
from bench.spark_cpu import cpu_used, spark_cpu, spark_jvm_pid
from tools import kafka_broker, ministack, spark_kafka
from tools.local_spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_COUNT = 2_000_000
SEGMENT_BYTES = 64 << 20
WARM_PASSES = 3  # not counted; the first is reported
PASSES = 3
FIRST_PASSES = 3
FIRST_SECONDS_MAX = 300.0
IDLE_SECONDS = 10.0
TIERED_SECONDS_MAX = 300.0
TOPIC = "scan"
BUCKET = "tidelog-bench"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
KAFKA, SPLIT = "kafka, Kafka", "kafka, split"
SUMS = ("count(1)", "sum(length(key))", "sum(length(value))", "max(offset)")
RESULTS = Path(__file__).parent / "results" / "spark_source.json"


# The goals, for both queries.
FIRST_TIME_OF_KAFKA_MAX = 1.0
SPEED_OVER_KAFKA_MIN = 3.0
SPEED_OVER_SPLIT_MIN = 2.0
TIME_OF_PARQUET_MAX = 3.0
NODE_CPU_SECONDS_MAX = 0.02  # two ticks of the kernel's clock

FIRST_RATIO = f"tidelog: first: times the time of {KAFKA}"

Figures = dict[str, float | int]
Queries = dict[str, Callable[[], "DataFrame"]]


@dataclass(frozen=True, slots=True)
class Scan:
    """One query."""

    seconds: float
    task_count: int
    jvm_cpu_seconds: float
    python_cpu_seconds: float
    node_cpu_seconds: float
    get_count: int


def main() -> None:
    """Measure and print; ``first`` runs one pass, in a process of its own."""
    if sys.argv[1:2] == ["first"]:
        _print_first(Path(sys.argv[2]), json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source")
    parser.add_argument("--only", choices=("first", "passes"))
    only = parser.parse_args().only
    os.environ.update(CREDENTIALS)
    # As with modules that were installed with their bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    machine_code()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _hide_hypothesis(folder / "hidden")
        stand_in = stack.enter_context(ministack.serve(folder))
        server = stack.enter_context(s3_shape.serve(folder, stand_in))
        server.set_shape(None)
        kafka_port = stack.enter_context(kafka_broker.serve(folder / "kafka"))
        figures = _measure(folder, stand_in, server, f"127.0.0.1:{kafka_port}", only=only)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    _print_wanted(figures)


def _measure(
    folder: Path, stand_in: str, server: ShapedServer, kafka: str, *, only: str | None
) -> Figures:
    os.environ["AWS_ENDPOINT_URL"] = server.endpoint
    objects = folder / "objects"
    parquet = str(folder / "parquet")
    with running_node(folder / "node", f"--object-store=file://{objects}") as node:
        _produce(node.bootstrap)
        _produce(kafka)
        metadata = f"sqlite:///{folder / 'node' / 'metadata.db'}"
        stores = {"metadata": metadata, "objects": f"file://{objects}"}
        end = _wait_until_tiered(folder / "node" / f"{TOPIC}-0", stores)
        limits = {
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "endingOffsets": json.dumps({TOPIC: {"0": end}}),
        }
        figures: Figures = {"records": end, "cores": os.cpu_count() or 0}
        if only != "passes":
            figures |= _first_passes(
                folder,
                {
                    "tidelog": {"format": "tidelog", **limits, **stores},
                    KAFKA: {"format": "kafka", **limits, "kafka.bootstrap.servers": kafka},
                },
            )
        if only == "first":
            return figures
        in_s3 = {"metadata": metadata, "objects": _copied_to_s3(objects, stand_in)}
        spark = _session(folder)

        def read(form: str, **options: str) -> DataFrame:
            return spark.read.format(form).options(**limits, **options).load()

        def read_kafka(bootstrap: str, **options: str) -> DataFrame:
            return read("kafka", **{"kafka.bootstrap.servers": bootstrap, **options})

        queries: Queries = {
            "tidelog": lambda: read("tidelog", **stores),
            "tidelog, S3": lambda: read("tidelog", **in_s3),
            "kafka, node": lambda: read_kafka(node.bootstrap),
            KAFKA: lambda: read_kafka(kafka),
            SPLIT: lambda: read_kafka(kafka, minPartitions=str(os.cpu_count() or 1)),
            "parquet": lambda: spark.read.parquet(parquet),
        }
        before = node.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        idle_cpu = (node.cpu_seconds() - before) / IDLE_SECONDS
        scans = _scan_all(
            _Scanner(spark, spark_jvm_pid(), end, node, server), queries, parquet=Path(parquet)
        )
    # The node has ended. Tiered records can still be read.
    started = time.perf_counter()
    _check_sums(queries["tidelog"](), end)
    without_node_seconds = time.perf_counter() - started
    spark.stop()
    figures["node CPU seconds a second, nothing running"] = round(idle_cpu, 4)
    figures["tidelog: sums: seconds, node stopped"] = round(without_node_seconds, 2)
    return figures | _figures(end, scans, idle_cpu)


def _scan_all(scan: _Scanner, queries: Queries, *, parquet: Path) -> dict[str, list[Scan]]:
    """Run each query several times in turn; return its passes by its name and kind.

    The Parquet files are written just before they are read for the first time.
    """
    scans: dict[str, list[Scan]] = {}
    for kind in ("sums", "all"):
        # Turns are short: Spark ends Python workers that were idle for a minute.
        for number in range(WARM_PASSES + PASSES):
            for name, query in queries.items():
                if name == "parquet" and not parquet.exists():
                    queries["tidelog"]().write.parquet(str(parquet))
                found = scan.run(query, kind)
                scans.setdefault(f"{name}: {kind}", []).append(found)
                print(f"{name}: {kind}, pass {number}: {found}", flush=True)
    return scans


def _first_passes(folder: Path, ways: dict[str, dict[str, str]]) -> Figures:
    """Return the seconds and CPU time of each way as a session's first query; medians."""
    passes: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(FIRST_PASSES):
        for name, options in ways.items():
            ran = subprocess.run(
                [sys.executable, "-m", "bench.spark_source", "first", folder, json.dumps(options)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=FIRST_SECONDS_MAX,
            )
            found = json.loads(ran.stdout.splitlines()[-1])
            print(f"{name}: first, pass {number}: {found}", flush=True)
            passes[name].append(found)
    figures: Figures = {}
    for name, all_found in passes.items():
        for part in ("seconds", "JVM CPU seconds", "Python CPU seconds"):
            median = statistics.median(found[part] for found in all_found)
            figures[f"{name}: first: {part}"] = round(median, 2)
    ratio = figures["tidelog: first: seconds"] / figures[f"{KAFKA}: first: seconds"]
    return figures | {FIRST_RATIO: round(ratio, 2)}


def _print_first(folder: Path, options: dict[str, str]) -> None:
    """Run the sums as the first query of a session, and print what it took."""
    end = json.loads(options["endingOffsets"])[TOPIC]["0"]
    form = options.pop("format")
    spark = _session(folder)
    cpu, started = spark_cpu(spark_jvm_pid()), time.perf_counter()
    _check_sums(spark.read.format(form).options(**options).load(), end)
    seconds = time.perf_counter() - started
    used = cpu_used(cpu, spark_cpu(spark_jvm_pid()))
    found = {
        "seconds": seconds,
        "JVM CPU seconds": used["jvm"],
        "Python CPU seconds": used["python"],
    }
    spark.stop()
    print(json.dumps({name: round(number, 2) for name, number in found.items()}))


def _hide_hypothesis(folder: Path) -> None:
    """Make the import of hypothesis fail in the processes that start from now on."""
    folder.mkdir()
    (folder / "hypothesis.py").write_text('raise ImportError("hidden")\n')
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@dataclass(frozen=True, slots=True)
class _Scanner:
    """Runs queries and measures their costs."""

    spark: SparkSession
    jvm_pid: int
    end: int
    node: Node
    server: ShapedServer

    def run(self, query: Callable[[], DataFrame], kind: str) -> Scan:
        group = uuid.uuid4().hex
        context = self.spark.sparkContext
        context.setJobGroup(group, group)
        node_cpu, get_count = self.node.cpu_seconds(), self.server.get_count
        cpu, started = spark_cpu(self.jvm_pid), time.perf_counter()
        if kind == "sums":
            _check_sums(query(), self.end)
        else:
            query().write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
        used = cpu_used(cpu, spark_cpu(self.jvm_pid))
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return Scan(
            seconds,
            max(stage.numTasks for stage in stages if stage),
            used["jvm"],
            used["python"],
            self.node.cpu_seconds() - node_cpu,
            self.server.get_count - get_count,
        )


def _check_sums(table: DataFrame, end: int) -> None:
    [row] = table.selectExpr(*SUMS).collect()
    if tuple(row) != (end, 16 * end, 512 * end, end - 1):
        raise RuntimeError(f"the scan found {row}, there are {end} records")


def _figures(end: int, scans: dict[str, list[Scan]], idle_cpu: float) -> Figures:
    figures: Figures = {}
    seconds = {}
    for name, passes in scans.items():
        counted = passes[WARM_PASSES:]
        seconds[name] = statistics.median(scan.seconds for scan in counted)
        # The node's time without a query is not a cost of the query.
        node_cpu = statistics.median(
            scan.node_cpu_seconds - idle_cpu * scan.seconds for scan in counted
        )
        figures[f"{name}: seconds"] = round(seconds[name], 2)
        figures[f"{name}: records/s"] = round(end / seconds[name])
        for part, values in (
            ("JVM", [scan.jvm_cpu_seconds for scan in counted]),
            ("Python", [scan.python_cpu_seconds for scan in counted]),
        ):
            figures[f"{name}: {part} CPU seconds"] = round(statistics.median(values), 2)
        figures[f"{name}: node CPU seconds"] = round(max(node_cpu, 0.0), 2)
        figures[f"{name}: tasks"] = counted[-1].task_count
        figures[f"{name}: GETs"] = counted[-1].get_count
    for kind in ("sums", "all"):
        for name in ("tidelog, S3", "kafka, node", KAFKA, SPLIT, "parquet"):
            figures[f"tidelog's speed over {name}: {kind}"] = round(
                seconds[f"{name}: {kind}"] / seconds[f"tidelog: {kind}"], 2
            )
    return figures


def _print_wanted(figures: Figures) -> None:
    """Print the goals, the figures, and whether the goals are reached."""
    print("| query | measurement | wanted | seen | |\n|---|---|---|---|---|")
    if FIRST_RATIO in figures:
        seen = figures[FIRST_RATIO]
        held = "holds" if seen <= FIRST_TIME_OF_KAFKA_MAX else "does not hold"
        wanted = f"≤ {FIRST_TIME_OF_KAFKA_MAX:g}"
        print(f"| first | times the time of {KAFKA} | {wanted} | {seen} | {held} |")
    for kind in ("sums", "all") if "tidelog: sums: seconds" in figures else ():
        for name, least in (
            ("kafka, node", SPEED_OVER_KAFKA_MIN),
            (KAFKA, SPEED_OVER_KAFKA_MIN),
            (SPLIT, SPEED_OVER_SPLIT_MIN),
        ):
            seen = figures[f"tidelog's speed over {name}: {kind}"]
            held = "holds" if seen >= least else "does not hold"
            wanted = f"{least:g}"
            print(f"| {kind} | times the speed of {name} | {wanted} | {seen} | {held} |")
        seen = round(1 / figures[f"tidelog's speed over parquet: {kind}"], 2)
        held = "holds" if seen <= TIME_OF_PARQUET_MAX else "does not hold"
        wanted = f"≤ {TIME_OF_PARQUET_MAX:g}"
        print(f"| {kind} | times the time of Parquet | {wanted} | {seen} | {held} |")
        seen = figures[f"tidelog: {kind}: node CPU seconds"]
        held = "holds" if seen <= NODE_CPU_SECONDS_MAX else "does not hold"
        print(f"| {kind} | node CPU seconds, beyond an idle node's | 0 | {seen} | {held} |")


def _copied_to_s3(objects: Path, endpoint: str) -> str:
    """Copy a folder's objects into a bucket under the same keys; return the bucket's URL."""
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    prefix = uuid.uuid4().hex
    for path in objects.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(objects)}")
    return f"s3://{BUCKET}/{prefix}"


def _produce(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([topic])[TOPIC].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(RECORD_COUNT):
        value = os.urandom(256).hex()
        while True:
            try:
                producer.produce(TOPIC, value, f"{number:016d}")
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("not everything was acknowledged")


def _wait_until_tiered(partition_dir: Path, stores: dict[str, str]) -> int:
    """Return the partition's tiered end offset, once all but the active segment is tiered."""
    deadline = time.monotonic() + TIERED_SECONDS_MAX
    active = int(max(path.stem for path in partition_dir.glob("*.log")))
    while time.monotonic() < deadline:
        text = tidelog_spark.bookmark({"subscribe": TOPIC, **stores})
        if json.loads(text)["end"][TOPIC]["0"] == active:
            return active
        time.sleep(0.5)
    raise TimeoutError("segments are not tiered")


def _session(folder: Path) -> SparkSession:
    settings = {
        "spark.jars": ",".join(str(jar) for jar in spark_kafka.jars()),
        "spark.local.dir": str(folder / "local"),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    spark = local_session(
        "tidelog-bench", master="local[*]", memory="4g", java=(), settings=settings
    )
    spark.range(1_000_000).selectExpr("sum(id)").collect()  # This warms up Spark itself.
    return spark


if __name__ == "__main__":
    main()
