"""What each page of the documentation is about: the clusters, topics and files of its reader.

A stage prepares a folder and a reader, so that the page's commands can be run in order.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.docs.page_reader import PageReader
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kafka_broker
from tools.places import ROOT
from tools.ports import free_port, free_ports

Stage = Callable[[PageReader, ExitStack], None]

RECORDS = 2_000
SEGMENT = {"segment.bytes": "20000"}
QUICK = {
    "remote.task.interval.ms": "50",
    "log.retention.check.interval.ms": "200",
    "metadata.poll.interval.ms": "50",
}
OPEN_WITH_ACLS = {"authorizer.class.name": "tidelog.acl", "super.users": "User:ANONYMOUS"}
_DOCS = ROOT / "docs"


# -- parts of stages --


def node(
    reader: PageReader, stack: ExitStack, config: Mapping[str, str] | None = None, **options: object
) -> NodeProcess:
    """Start a node with the data directory ``data``, which commands without an address ask."""
    running = NodeProcess(reader.folder / "data", config={**QUICK, **(config or {})}, **options)  # type: ignore[arg-type]
    stack.enter_context(running)
    at(reader, running.address)
    return running


def at(reader: PageReader, address: str) -> None:
    """Have commands ask the node at the address, and the page's own address stand for it."""
    reader.environment["TIDELOG_BOOTSTRAP_SERVERS"] = address
    reader.words.append(("localhost:9092", address))


def stores(reader: PageReader, data: Path) -> None:
    """Have the page's stores of AWS stand for those of a data directory."""
    metadata, objects = f"sqlite://{data}/metadata.db", f"file://{data}/objects"
    reader.words += [
        ("--metadata URL", f"--metadata {metadata}"),
        ("--objects URL", f"--objects {objects}"),
        ("--metadata …", f"--metadata {metadata}"),
        ("--objects …", f"--objects {objects}"),
        ("s3://BUCKET/tidelog", objects),
    ]


def topics(address: str, *names: str, partitions: int = 1, **config: str) -> None:
    """Create topics; ``_`` is ``.`` in settings."""
    admin = AdminClient({"bootstrap.servers": address})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = [NewTopic(name, partitions, config=settings) for name in names]
    for created in admin.create_topics(new).values():
        created.result(60)


def fill(address: str, topic: str, *, count: int = RECORDS, partitions: int = 1) -> None:
    """Write records with few keys into the partitions in turn."""
    producer = Producer({"bootstrap.servers": address, "batch.size": 4_000})
    for number in range(count):
        value, key = b"%06d" % number + b"x" * 90, b"%d" % (4700 + number % 50)
        producer.produce(topic, value, key, partition=number % partitions)
    assert producer.flush(60) == 0


def read(address: str, topic: str, group: str) -> None:
    """Read some records as a group, and commit."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert consumer.consume(100, timeout=60)
    consumer.commit(asynchronous=False)
    consumer.close()


def wait_tiered(data: Path, topic: str) -> None:
    """Wait until segments of the topic are in the folder of objects."""
    objects = data / "objects"
    eventually(lambda: any(objects.glob(f"*/{topic}-*/*/*.index")), f"{topic} is tiered")


# -- the pages --


def readme(reader: PageReader, stack: ExitStack) -> None:
    """A reader in an empty folder, who starts the cluster as the page says."""
    port = str(free_port())
    at(reader, f"localhost:{port}")
    reader.words.append(("--port 9092", f"--port {port}"))
    reader.server_options = {"tidelog up": "--http-port 0"}


def admin(reader: PageReader, stack: ExitStack) -> None:
    """A node with ACLs that everyone may change, and the admin API in front of its stores."""
    running = node(reader, stack, OPEN_WITH_ACLS)
    topics(running.address, "billed", segment_bytes="20000")
    fill(running.address, "billed")
    wait_tiered(running.data_dir, "billed")
    read(running.address, "billed", "billing")
    reader.run("tidelog role create engineers User:bob", "stage")
    port = free_port()
    reader.server_options = {"python -m tidelog_functions.admin.local": f"--port {port}"}
    reader.words += [
        # The functions' own client signs requests; the local API asks for no signature.
        ("awscurl --service execute-api", "curl -sS --fail-with-body"),
        ("http://127.0.0.1:8080", f"http://127.0.0.1:{port}"),
        ('[{"topic": "orders"}]', '[{"topic": "billed"}]'),
    ]
    reader.environment["ADMIN"] = f"http://127.0.0.1:{port}"
    block = (_DOCS / "admin.md").read_text()
    (start,) = [line.strip() for line in block.splitlines() if "admin.local --metadata" in line]
    reader.run(start, "stage")
    reader.words.insert(0, (start, "true"))  # It runs already.


def compaction(reader: PageReader, stack: ExitStack) -> None:
    """A cluster with compacted topics in the folder ``tidelog-data``."""
    data = reader.folder / "tidelog-data"
    running = stack.enter_context(NodeProcess(data, config=QUICK))
    at(reader, running.address)
    compact = {"cleanup_policy": "compact", "segment_bytes": "20000", "file_delete_delay_ms": "0"}
    topics(running.address, "prices", "customers", **compact)
    for topic in ("prices", "customers"):
        fill(running.address, topic)
        wait_tiered(data, topic)
    stores(reader, data)
    reader.words += [
        ("'spark-submit --master yarn'", "'spark-submit --master local[1]'"),
    ]
    quick_spark(reader)


def contexts(reader: PageReader, stack: ExitStack) -> None:
    """A secure cluster, and a file of settings for it."""
    port = secure(reader)
    reader.words += [
        ("kafka.example.org:9093", f"127.0.0.1:{port}"),
        ("localhost:9092", "127.0.0.1:9"),  # a cluster that nobody asks
    ]
    reader.environment["SSL_CERT_FILE"] = str(reader.folder / "tidelog-data/secure/authority.pem")
    client = reader.folder / "tidelog-data/secure/client.properties"
    shutil.copy(client, reader.folder)
    reader.run(f"tidelog --command-config {client} user add alice", "stage")


def secure(reader: PageReader) -> int:
    """Start a secure cluster in ``tidelog-data``, as pages do; return its port."""
    port = free_port()
    reader.server_options = {"tidelog up": f"--port {port} --http-port 0"}
    reader.run("tidelog up --secure", "stage")
    return port


def cost(reader: PageReader, stack: ExitStack) -> None:
    """A node whose ledger has something to show."""
    data = reader.folder / "tidelog-data"
    running = stack.enter_context(
        NodeProcess(data, config={**QUICK, "cost.ledger.interval.ms": "1000"})
    )
    at(reader, running.address)
    topics(running.address, "clicks", segment_bytes="20000")
    fill(running.address, "clicks")
    wait_tiered(data, "clicks")
    show = f"tidelog cost --data-dir {data} --by topic"
    eventually(lambda: "clicks" in reader.run(show, "stage"), "the ledger has the topic")


def deploy(reader: PageReader, stack: ExitStack) -> None:
    """Nothing: all that needs no account is files."""


def diskless(reader: PageReader, stack: ExitStack) -> None:
    """A reader in an empty folder, who starts the cluster as the page says."""
    port = free_port()
    at(reader, f"localhost:{port}")
    reader.server_options = {"tidelog up": f"--port {port} --http-port 0"}


def jobs(reader: PageReader, stack: ExitStack) -> None:
    """Stores in ``data`` with tiered topics, two of them with schemas, and an audit log."""
    data, port = reader.folder / "data", str(free_port())
    running = node(reader, stack, {"audit.enable": "true"}, arguments=("--registry-port", port))
    topics(running.address, "orders", segment_bytes="20000")
    topics(running.address, "payments", "clicks", segment_ms="1000")
    fill(running.address, "orders")
    reader.environment["TIDELOG_REGISTRY"] = f"http://127.0.0.1:{port}"
    for topic in ("payments", "clicks"):
        register_and_fill(reader, topic)
    for topic in ("orders", "payments", "clicks"):
        wait_tiered(data, topic)
    eventually(lambda: any(data.glob("__tidelog_audit-*")), "there is an audit log")
    quick_spark(reader)
    metadata, objects = f"sqlite://{data}/metadata.db", f"file://{data}/objects"
    lake = reader.folder / "lake"
    catalog = (
        f"type=sql --catalog uri=sqlite:///{reader.folder}/catalog.db"
        f" --catalog warehouse=file://{lake}"
    )
    reader.words += [
        ("'dynamodb://tidelog?region=eu-central-1'", metadata),
        ("s3://bucket/tidelog", objects),
        ("'spark-submit --master yarn'", "'spark-submit --master local[1]'"),
        ("s3://lake/orders", f"file://{lake}/delta"),
        ("type=rest --catalog uri=http://catalog:8181", catalog),
        ("type=glue --catalog warehouse=s3://lake", catalog),
    ]


def register_and_fill(reader: PageReader, topic: str) -> None:
    """Register three versions of a schema, and write records of the last one."""
    fields: list[dict[str, object]] = [{"name": "id", "type": "long"}]
    for name in ("note", "tag", "remark"):
        fields.append({"name": name, "type": ["null", "string"], "default": None})
        schema = {"type": "record", "name": "Record", "fields": fields}
        (reader.folder / "record.avsc").write_text(json.dumps(schema))
        reader.run(f"tidelog schema register {topic}-value record.avsc", "stage")
    lines = "".join(f'{{"id": {n}, "note": "{"x" * 90}"}}\n' for n in range(RECORDS // 4))
    (reader.folder / "records.json").write_text(lines)
    reader.run(f"tidelog produce {topic} --value-format avro < records.json", "stage")


def quick_spark(reader: PageReader) -> None:
    """Have jobs start the tests' Spark, which compiles less, on this machine alone."""
    from tools.local_spark import spark_home

    reader.environment["SPARK_HOME"] = str(spark_home())
    reader.environment["SPARK_LOCAL_IP"] = "127.0.0.1"


def migrate(reader: PageReader, stack: ExitStack) -> None:
    """A broker of Kafka and a node, with the same topic and group."""
    port = stack.enter_context(kafka_broker.serve(reader.folder / "kafka"))
    target = node(reader, stack)
    source = f"127.0.0.1:{port}"
    for address in (source, target.address):
        topics(address, "orders")
        fill(address, "orders", count=200)
        read(address, "orders", "billing")
    reader.words += [("--bootstrap kafka:9092", f"--bootstrap {source}")]
    reader.words += [("--bootstrap tidelog:9092", f"--bootstrap {target.address}")]


def operations(reader: PageReader, stack: ExitStack) -> None:
    """A node with probes; stopped, and a segment of it lost, before it is repaired."""
    running = node(reader, stack, {"log.segment.bytes": "20000"}, arguments=("--http-port", "0"))
    topics(running.address, "topic", remote_storage_enable="false")
    fill(running.address, "topic")
    reader.words += [
        ("localhost:9644", running.http_address),
        ("/var/lib/tidelog/node", str(running.data_dir)),
    ]

    def lose_a_segment() -> None:
        running.stop()
        sorted((running.data_dir / "topic-0").glob("*.log"))[1].unlink()

    reader.before += [("tidelog repair", lose_a_segment), ("tidelog up --set tracing", reader.stop)]
    reader.server_options = {"tidelog up": f"--port {free_port()} --http-port 0"}
    # A dry run of a log with a loss says so by its status; so does the repair.


def quotas(reader: PageReader, stack: ExitStack) -> None:
    """A node."""
    node(reader, stack)


def restore(reader: PageReader, stack: ExitStack) -> None:
    """A node whose metadata is deleted under it."""
    running = node(reader, stack)
    data = running.data_dir
    topics(running.address, "orders", segment_bytes="20000")
    fill(running.address, "orders")
    wait_tiered(data, "orders")
    reader.words += [("/proc/PID", f"/proc/{running.pid}")]
    reader.found += [
        ("/fd/N", r"(\d+) -> \S+metadata\.db \(deleted\)"),
        ("/fd/M", r"(\d+) -> \S+metadata\.db-wal \(deleted\)"),
    ]

    def delete() -> None:
        for file in data.glob("metadata.db*"):
            file.unlink()

    def stop() -> None:
        copy = sqlite3.connect(reader.folder / "metadata.db")
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)
        assert copy.execute("select count(*) from items").fetchone()[0] > 0
        copy.close()
        running.stop()

    reader.before += [("ls -l", delete), ("tidelog restore", stop)]
    stores(reader, data)
    again = f"sqlite://{reader.folder}/restored.db"
    reader.words.append(("dynamodb://TABLE?region=eu-central-1", again))


def runbook(reader: PageReader, stack: ExitStack) -> None:
    """Four nodes with the topics, groups and the transaction that the page is about."""
    port = free_ports(8)
    data = reader.folder / "tidelog-data"
    reader.server_options = {"tidelog up": f"--nodes 4 --port {port} --http-port {port + 4}"}
    reader.run("tidelog up", "stage")
    address = f"127.0.0.1:{port}"
    at(reader, address)
    reader.environment["TIDELOG_DATA_DIR"] = str(data)
    replicated = {"replication_factor": 3}
    client = AdminClient({"bootstrap.servers": address})
    new = [NewTopic("orders", 2, config=SEGMENT, **replicated), NewTopic("probes", 1, **replicated)]
    for created in client.create_topics(new).values():
        created.result(60)
    fill(address, "orders", partitions=2)
    read(address, "orders", "billing")
    wait_tiered(data, "orders")
    damaged = reader.folder / "stopped"
    with NodeProcess(damaged, config={"log.segment.bytes": "20000"}) as stopped:
        topics(stopped.address, "orders", remote_storage_enable="false")
        fill(stopped.address, "orders")
    sorted((damaged / "orders-0").glob("*.log"))[1].unlink()
    reader.words += [
        ("/var/lib/tidelog/node", str(damaged)),
        ("localhost:9644", f"127.0.0.1:{port + 4}"),
        ("s3://BUCKET/tidelog", f"file://{data}/objects"),
        ("dynamodb://TABLE?region=eu-central-1", f"sqlite://{reader.folder}/restored.db"),
    ]
    (reader.folder / "node.log").write_text("INFO node started\n")

    def begin_a_transaction() -> None:
        producer = Producer({"bootstrap.servers": address, "transactional.id": "hangs"})
        producer.init_transactions(60)
        producer.begin_transaction()
        start: list[int] = []
        producer.produce(
            "orders", b"x", partition=0, on_delivery=lambda _, record: start.append(record.offset())
        )
        assert producer.flush(60) == 0
        reader.words.append(("--start-offset 1234", f"--start-offset {start[0]}"))
        stack.callback(lambda: producer)  # kept until the end of the page

    reader.before.append(("tidelog transaction list", begin_a_transaction))


def security(reader: PageReader, stack: ExitStack) -> None:
    """A reader in an empty folder, who starts a secure cluster as the page says."""
    port = free_port()
    reader.server_options = {"tidelog up": f"--port {port} --http-port 0"}
    etc = reader.folder / "etc"
    etc.mkdir()
    reader.words.append(("/etc/tidelog", str(etc)))
    reader.found.append(("TOKEN_ID", r"(?m)^token id: +(\S+)"))

    def save_properties() -> None:
        shutil.copy(reader.folder / "tidelog-data/secure/client.properties", reader.folder)

    reader.before.append(("tidelog --command-config client.properties", save_properties))


def spark_sink(reader: PageReader, stack: ExitStack) -> None:
    """A node, and a table of files."""
    import pandas

    node(reader, stack)
    lake = reader.folder / "lake" / "flights"
    lake.mkdir(parents=True)
    hours = pandas.date_range("2013-01-01", periods=50, freq="h", tz="UTC")
    table = pandas.DataFrame({"tailnum": [f"N{n % 7}" for n in range(50)], "time_hour": hours})
    table.to_parquet(lake / "part.parquet", coerce_timestamps="us")
    quick_spark(reader)


def upgrade_to_closed(reader: PageReader, stack: ExitStack) -> None:
    """A node as it is after the first step."""
    node(reader, stack, {**OPEN_WITH_ACLS, "authorizer.dry.run": "true"})


STAGES: Mapping[Path, Stage] = {
    ROOT / "README.md": readme,
    **{
        _DOCS / f"{name}.md": stage
        for name, stage in {
            "admin": admin,
            "compaction": compaction,
            "contexts": contexts,
            "cost": cost,
            "deploy": deploy,
            "diskless": diskless,
            "jobs": jobs,
            "migrate": migrate,
            "operations": operations,
            "quotas": quotas,
            "restore": restore,
            "runbook": runbook,
            "security": security,
            "spark-sink": spark_sink,
            "upgrade-to-closed": upgrade_to_closed,
        }.items()
    },
}


@contextmanager
def on_stage(stage: Stage, reader: PageReader) -> Iterator[None]:
    """Prepare the stage, and clear it at the end."""
    with ExitStack() as stack:
        stage(reader, stack)
        yield
