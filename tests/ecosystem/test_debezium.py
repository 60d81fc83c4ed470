"""Debezium copies the changes of a PostgreSQL table exactly once, while the node is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ecosystem.counting import SECONDS_MAX, committed
from tests.ecosystem.workers import Workers
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import debezium, postgres
from tools.places import ToolAbsent
from tools.postgres import Database

ROWS, UPDATES, DELETES = 3_000, 900, 100
TOPIC = "shop.public.orders"
JSON = "org.apache.kafka.connect.json.JsonConverter"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def database() -> Iterator[Database]:
    if debezium.PROGRAM.class_path() is None:
        pytest.skip("Debezium is not installed: run `make tools`")
    try:
        with postgres.serving() as server:
            yield server
    except ToolAbsent as absent:
        pytest.skip(str(absent))


def test_every_change_of_a_table_is_there_once(
    tmp_path: Path, node: NodeProcess, database: Database
) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, amount int NOT NULL)",
        f"INSERT INTO orders SELECT id, 0 FROM generate_series(1, {ROWS}) AS id",
    )
    counts: Counter[str] = Counter()

    def counted() -> Counter[str]:
        """Return the number of records by kind: r, u, d, and ``null`` for tombstones."""
        counts.clear()
        for message in committed(node.address, TOPIC):
            value = message.value()
            counts["null" if value is None else json.loads(value)["op"]] += 1
        return counts

    with ExitStack() as stack:
        workers = Workers(debezium.PROGRAM, tmp_path, node.address, stack, count=1)

        def told() -> str:
            return f"{counts}; {workers.state('orders')}"

        workers.put(
            "orders",
            **{
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "tasks.max": "1",
                "exactly.once.support": "required",
                "topic.prefix": "shop",
                "plugin.name": "pgoutput",
                "database.hostname": "127.0.0.1",
                "database.port": str(database.port),
                "database.user": "postgres",
                "database.password": "unused",
                "database.dbname": "postgres",
                "table.include.list": "public.orders",
                "topic.creation.default.partitions": "1",
                "topic.creation.default.replication.factor": "1",
                "key.converter": JSON,
                "key.converter.schemas.enable": "false",
                "value.converter": JSON,
                "value.converter.schemas.enable": "false",
            },
        )
        eventually(lambda: workers.state("orders") == "RUNNING, RUNNING", told, SECONDS_MAX)
        eventually(lambda: counted()["r"] == ROWS, told, SECONDS_MAX)
        half = UPDATES // 2
        database.run(
            *(f"UPDATE orders SET amount = amount + id WHERE id = {n}" for n in range(1, half))
        )
        node.kill()
        database.run(
            *(
                f"UPDATE orders SET amount = amount + id WHERE id = {n}"
                for n in range(half, UPDATES + 1)
            ),
            f"DELETE FROM orders WHERE id > {ROWS - DELETES}",
        )
        node.start()
        expected = {"r": ROWS, "u": UPDATES, "d": DELETES, "null": DELETES}
        eventually(lambda: counted() == expected, told, SECONDS_MAX)
    table: dict[int, int] = {}
    for message in committed(node.address, TOPIC):
        key, value = json.loads(message.key() or b""), message.value()
        after = None if value is None else json.loads(value)["after"]
        if after is None:
            table.pop(key["id"], None)
        else:
            table[key["id"]] = after["amount"]
    rows = database.run("SELECT id, amount FROM orders").splitlines()
    assert table == {int(one): int(two) for one, two in (row.split("|") for row in rows)}
