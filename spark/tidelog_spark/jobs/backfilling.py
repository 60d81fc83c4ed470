"""A table into a topic, once: whatever is interrupted goes on where it was.

The rows are first made into the sink's columns, then cut into a fixed number of tasks by
their key and value: so which rows a task has does not depend on how the table is read.
Each task commits its rows with a mark (``sink.task``). Run again under the same id, the
job finds the marks and writes what is missing; where nothing is, it does not even read
the table. The plan is kept beside the marks: another one under the same id is refused.

Marks and plan last as long as the cluster keeps the offsets of groups without members
(``offsets.retention.minutes``), counted from the last of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType
from tidelog import OffsetAndMetadata
from tidelog.errors import InvalidConfig

from tidelog_spark.sink.clients import SinkNames, open_admin
from tidelog_spark.sink.decision import MARKED
from tidelog_spark.sink.options import SinkOptions, parse_sink_options
from tidelog_spark.source import register

TASK_COUNT = 64
MARKS_AT_ONCE = 64
# Nulls stay, so that a record has all of a row's columns.
_JSON = {"ignoreNullFields": "false"}
_DIRECTION = re.compile(r"\s+(asc|desc)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """A table, the topic that it goes into, and how its rows become records.

    One of ``path``, ``table`` and ``query`` says where the rows are. The others are SQL
    expressions over the table's columns.
    """

    topic: str
    path: str | None = None
    format: str = "parquet"  # of path
    read_options: Mapping[str, str] = field(default_factory=dict)  # of path
    table: str | None = None
    query: str | None = None
    where: str | None = None
    key: str | None = None  # None: records without a key
    value: str | None = None  # None: the whole row as JSON
    headers: str | None = None
    timestamp: str | None = None  # None: the time of the writing
    partition: str | None = None
    order_by: tuple[str, ...] = ()  # of the records of one key; may end in desc

    def problems(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        found = []
        if sum(source is not None for source in (self.path, self.table, self.query)) != 1:
            found.append("give one of a path, a table and a query")
        if self.order_by and self.key is None:
            found.append("an order is that of the records of one key: give a key")
        return found

    @property
    def default_id(self) -> str:
        """Return the id of a backfill that is asked for like this."""
        text = json.dumps(asdict(self), sort_keys=True)
        return "backfill-" + hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a backfill has come to."""

    backfill_id: str
    topic: str
    task_count: int
    tasks_found_written: int  # by a run before this one
    row_count: int  # of all runs

    def document(self) -> dict[str, object]:
        """Return what ``--json`` prints."""
        return asdict(self)


class PlanChanged(InvalidConfig):
    """Under this id a backfill was begun that is not this one."""


def backfill(
    spark: SparkSession,
    request: BackfillRequest,
    sink: Mapping[str, str],
    *,
    backfill_id: str | None = None,
    task_count: int | None = None,
) -> BackfillReport:
    """Write the table's rows into the topic; those of tasks that were written stay as they are.

    ``sink`` are the options of the sink (``kafka.…``). Without a ``task_count`` it is that of
    the run before, or ``TASK_COUNT``. The table must not change from one run to the next.
    Raises ``InvalidConfig`` with every problem, ``PlanChanged``.
    """
    backfill_id = backfill_id or request.default_id
    options = parse_sink_options({**sink, "topic": request.topic, "writeId": backfill_id})
    if problems := request.problems():
        raise InvalidConfig(problems)
    names = SinkNames(backfill_id)
    task_count = asyncio.run(_plan(options, names, request, task_count))
    before = asyncio.run(_marks(options, names, task_count))
    if len(before) < task_count:
        register(spark)
        rows = records(read_table(spark, request), request)
        _cut(rows, request, task_count).write.format("tidelog").options(
            **sink, topic=request.topic, writeId=backfill_id
        ).mode("append").save()
    after = asyncio.run(_marks(options, names, task_count))
    return BackfillReport(backfill_id, request.topic, task_count, len(before), sum(after.values()))


def read_table(spark: SparkSession, request: BackfillRequest) -> DataFrame:
    """Return the rows that the request asks for."""
    if request.query is not None:
        table = spark.sql(request.query)
    elif request.table is not None:
        table = spark.table(request.table)
    else:
        reader = spark.read.format(request.format).options(**request.read_options)
        table = reader.load(request.path)
    return table if request.where is None else table.where(request.where)


def records(table: DataFrame, request: BackfillRequest) -> DataFrame:
    """Return the rows as the sink's columns, and the columns to be ordered by.

    What is neither text nor bytes becomes text: a struct, an array or a map as JSON.
    Raises ``InvalidConfig`` for expressions that come to something else each time.
    """
    whole_row = F.to_json(F.struct(*map(_quoted, table.columns)), _JSON)
    columns = {
        "key": _text(table, request.key),
        "value": whole_row if request.value is None else _text(table, request.value),
        "headers": None if request.headers is None else F.expr(request.headers),
        "timestamp": None if request.timestamp is None else F.expr(request.timestamp),
        "partition": None if request.partition is None else F.expr(request.partition),
    }
    chosen = [column.alias(name) for name, column in columns.items() if column is not None]
    order = [
        F.expr(_DIRECTION.sub("", each)).alias(f"_order_{number}")
        for number, each in enumerate(request.order_by)
    ]
    rows = table.select(*chosen, *order)
    # Nothing public tells.
    if not rows._jdf.queryExecution().analyzed().deterministic():  # noqa: SLF001
        raise InvalidConfig(
            [
                "an expression comes to something else each time it is computed (like rand() or"
                " uuid()): rows of an interrupted run could not be told from others"
            ]
        )
    return rows


def _cut(rows: DataFrame, request: BackfillRequest, task_count: int) -> DataFrame:
    """Return the rows in that many tasks; which one a row is in depends on the row alone."""
    if not request.order_by:
        by = ["key", "value"] if request.key is not None else ["value"]
        return rows.repartition(task_count, *by)
    names = [f"_order_{number}" for number in range(len(request.order_by))]
    order = [
        F.col(name).desc() if _is_descending(each) else F.col(name).asc()
        for name, each in zip(names, request.order_by, strict=True)
    ]
    return rows.repartition(task_count, "key").sortWithinPartitions(*order).drop(*names)


def _is_descending(order: str) -> bool:
    found = _DIRECTION.search(order)
    return found is not None and found[1].lower() == "desc"


def _text(table: DataFrame, expression: str | None) -> Column | None:
    if expression is None:
        return None
    kind: DataType = table.select(F.expr(expression)).schema[0].dataType
    if isinstance(kind, StringType | BinaryType):
        return F.expr(expression)
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(F.expr(expression), _JSON)
    return F.expr(expression).cast(StringType())


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


async def _plan(
    options: SinkOptions, names: SinkNames, request: BackfillRequest, task_count: int | None
) -> int:
    """Return how many tasks the backfill has, which the first run says once and for all."""
    async with open_admin(options) as admin:
        found = (await admin.list_group_offsets(names.group_id, [MARKED])).get(MARKED)
        if found is not None:
            if found.metadata != request.default_id:
                raise PlanChanged(
                    [f"{names.group_id!r} was begun with another table, topic or expressions"]
                )
            if task_count not in (None, found.offset):
                raise PlanChanged(
                    [f"{names.group_id!r} was begun with {found.offset} tasks, not {task_count}"]
                )
            return found.offset
        count = TASK_COUNT if task_count is None else task_count
        mark = OffsetAndMetadata(count, metadata=request.default_id)
        await admin.alter_group_offsets(names.group_id, {MARKED: mark})
        return count


async def _marks(options: SinkOptions, names: SinkNames, task_count: int) -> dict[int, int]:
    """Return how many rows each task has written, of those that have."""
    marks: dict[int, int] = {}
    async with open_admin(options) as admin:

        async def look(task: int) -> None:
            found = await admin.list_group_offsets(names.whole_task_id(task), [MARKED])
            if MARKED in found:
                marks[task] = found[MARKED].offset

        for start in range(0, task_count, MARKS_AT_ONCE):
            tasks = range(start, min(start + MARKS_AT_ONCE, task_count))
            await asyncio.gather(*map(look, tasks))
    return marks
