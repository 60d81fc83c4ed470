"""What a scan of one partition costs in Spark; writes bench/results/spark_source.json.

The same records by four ways, in turns, in one Spark session with as many tasks at once as
the machine has cores; the first pass is dropped and the median of the others counts:

tidelog           ``format("tidelog")``: segment and index objects in MiniStack's S3
kafka, node       Spark's Kafka source, which reads from a Tidelog node's local log
kafka, Kafka      the same from Apache Kafka
parquet           files that Spark wrote of the same rows

Each counts the rows and adds up the lengths of keys and values, so every byte comes to
Spark and none has to be printed. Records are 16 bytes of key and 512 of value, compressed
with lz4 as they were produced. Seconds are of the whole query, planning too.

    python -m bench.spark_source
"""

from __future__ import annotations

import json
import os
import statistics
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

from bench import s3_shape
from bench.process import Node, running_node
from bench.s3_shape import ShapedServer
from tools import kafka_broker, ministack, spark_kafka
from tools.local_spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_COUNT = 2_000_000
SEGMENT_BYTES = 64 << 20
PASSES = 3
TIERED_SECONDS_MAX = 300.0
TOPIC = "scan"
BUCKET = "tidelog-bench"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
SUMS = ("count(1)", "sum(length(key))", "sum(length(value))", "max(offset)")
RESULTS = Path(__file__).parent / "results" / "spark_source.json"


@dataclass(frozen=True, slots=True)
class Scan:
    """One query."""

    seconds: float
    task_count: int
    node_cpu_seconds: float
    get_count: int


def main() -> None:
    """Measure and print."""
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stand_in = stack.enter_context(ministack.serve(folder))
        server = stack.enter_context(s3_shape.serve(folder, stand_in))
        server.set_shape(None)
        kafka_port = stack.enter_context(kafka_broker.serve(folder / "kafka"))
        figures = _measure(folder, stand_in, server, f"127.0.0.1:{kafka_port}")
    print(json.dumps(figures, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


def _measure(
    folder: Path, stand_in: str, server: ShapedServer, kafka: str
) -> dict[str, float | int]:
    boto3.client("s3", endpoint_url=stand_in, region_name="us-east-1").create_bucket(Bucket=BUCKET)
    os.environ["AWS_ENDPOINT_URL"] = server.endpoint
    objects = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    with running_node(folder / "node", f"--object-store={objects}") as node:
        _produce(node.bootstrap)
        _produce(kafka)
        stores = {"metadata": f"sqlite:///{folder / 'node' / 'metadata.db'}", "objects": objects}
        end = _wait_until_tiered(folder / "node" / f"{TOPIC}-0", stores)
        spark = _session(folder)
        limits = {
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "endingOffsets": json.dumps({TOPIC: {"0": end}}),
        }

        def read(form: str, **options: str) -> DataFrame:
            return spark.read.format(form).options(**limits, **options).load()

        parquet = str(folder / "parquet")
        columns = ["key", "value", "partition", "offset", "timestamp"]
        read("tidelog", **stores).select(*columns).write.parquet(parquet)
        queries = {
            "tidelog": lambda: read("tidelog", **stores),
            "kafka, node": lambda: read("kafka", **{"kafka.bootstrap.servers": node.bootstrap}),
            "kafka, Kafka": lambda: read("kafka", **{"kafka.bootstrap.servers": kafka}),
            "parquet": lambda: spark.read.parquet(parquet),
        }
        scans: dict[str, list[Scan]] = {name: [] for name in queries}
        for _ in range(1 + PASSES):
            for name, query in queries.items():
                found = _scan(spark, query, end, node, server)
                scans[name].append(found)
                print(f"{name}: {found}", flush=True)
        spark.stop()
    return _figures(end, scans)


def _scan(
    spark: SparkSession, query: Callable[[], DataFrame], end: int, node: Node, server: ShapedServer
) -> Scan:
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, group)
    cpu_seconds, get_count, started = node.cpu_seconds(), server.get_count, time.perf_counter()
    [row] = query().selectExpr(*SUMS).collect()
    seconds = time.perf_counter() - started
    if tuple(row) != (end, 16 * end, 512 * end, end - 1):
        raise RuntimeError(f"the scan found {row}, there are {end} records")
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return Scan(
        seconds,
        max(stage.numTasks for stage in stages if stage),
        node.cpu_seconds() - cpu_seconds,
        server.get_count - get_count,
    )


def _figures(end: int, scans: dict[str, list[Scan]]) -> dict[str, float | int]:
    figures: dict[str, float | int] = {"records": end, "cores": os.cpu_count() or 0}
    seconds = {}
    for name, found in scans.items():
        counted = found[1:]
        seconds[name] = statistics.median(scan.seconds for scan in counted)
        node_cpu = statistics.median(scan.node_cpu_seconds for scan in counted)
        figures[f"{name}: seconds"] = round(seconds[name], 2)
        figures[f"{name}: records/s"] = round(end / seconds[name])
        figures[f"{name}: tasks"] = counted[-1].task_count
        figures[f"{name}: node CPU seconds"] = round(node_cpu, 2)
        figures[f"{name}: GETs"] = counted[-1].get_count
    for name in ("kafka, node", "kafka, Kafka", "parquet"):
        figures[f"tidelog's speed over {name}"] = round(seconds[name] / seconds["tidelog"], 2)
    return figures


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
    """Return where the partition's tier ends, once all but the active segment is there."""
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
    }
    return local_session("tidelog-bench", master="local[*]", memory="4g", settings=settings)


if __name__ == "__main__":
    main()
