"""Writes a table into a topic exactly once; an interrupted run can be continued.

The rows are converted to the sink's columns, then divided into a fixed number of tasks by
key and value: so a task's rows do not depend on how the table is read. Each task commits
its rows with a mark (``sink.task``). A second run with the same id finds the marks and
writes the missing rows; if none are missing, it does not read the table. The plan is
stored beside the marks: a different plan under the same id is rejected.

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
# Nulls are included, so that a record has all of a row's columns.
_JSON = {"ignoreNullFields": "false"}
_DIRECTION = re.compile(r"\s+(asc|desc)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """A table, its target topic, and the expressions that make records of its rows.

    Exactly one of ``path``, ``table`` and ``query`` gives the rows. The others are SQL
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
    timestamp: str | None = None  # None: the time of writing
    partition: str | None = None
    order_by: tuple[str, ...] = ()  # of the records of one key; may end in desc

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = []
        if sum(source is not None for source in (self.path, self.table, self.query)) != 1:
            found.append("give one of a path, a table and a query")
        if self.order_by and self.key is None:
            found.append("order_by orders the records of one key: give a key too")
        return found

    @property
    def default_id(self) -> str:
        """Return the id derived from all other fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        return "backfill-" + hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The result of a backfill."""

    backfill_id: str
    topic: str
    task_count: int
    tasks_found_written: int  # by an earlier run
    row_count: int  # over all runs

    def document(self) -> dict[str, object]:
        """Return the output of ``--json``."""
        return asdict(self)


class PlanChanged(InvalidConfig):
    """A different backfill was started with this id."""


def check_backfill(request: BackfillRequest, sink: Mapping[str, str]) -> None:
    """Raise ``InvalidConfig`` with all problems of the request or of the sink's options. No I/O."""
    parse_sink_options({**sink, "topic": request.topic})
    if problems := request.problems():
        raise InvalidConfig(problems)


def backfill(
    spark: SparkSession,
    request: BackfillRequest,
    sink: Mapping[str, str],
    *,
    backfill_id: str | None = None,
    task_count: int | None = None,
) -> BackfillReport:
    """Write the table's rows into the topic, skipping tasks written by an earlier run.

    ``sink`` holds options of the sink (``kafka.…``). ``task_count`` defaults to that of the
    earlier run, or ``TASK_COUNT``. The table must not change between runs. Raises
    ``InvalidConfig`` with all problems, ``PlanChanged``.
    """
    check_backfill(request, sink)
    backfill_id = backfill_id or request.default_id
    options = parse_sink_options({**sink, "topic": request.topic, "writeId": backfill_id})
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
    """Return the requested rows."""
    if request.query is not None:
        table = spark.sql(request.query)
    elif request.table is not None:
        table = spark.table(request.table)
    else:
        reader = spark.read.format(request.format).options(**request.read_options)
        table = reader.load(request.path)
    return table if request.where is None else table.where(request.where)


def records(table: DataFrame, request: BackfillRequest) -> DataFrame:
    """Return the rows as the sink's columns, and the columns to order by.

    Values other than text and bytes become text: a struct, an array or a map as JSON.
    Raises ``InvalidConfig`` for expressions that are not deterministic.
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
    # Spark has no public method for this.
    if not rows._jdf.queryExecution().analyzed().deterministic():  # noqa: SLF001
        raise InvalidConfig(
            [
                "an expression is not deterministic (like rand() or"
                " uuid()): a second run could not recognise the first one's rows"
            ]
        )
    return rows


def _cut(rows: DataFrame, request: BackfillRequest, task_count: int) -> DataFrame:
    """Divide the rows into tasks; a row's task depends only on the row."""
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
    """Return the number of tasks, which the first run fixes."""
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
    """Return the number of rows written by each finished task."""
    marks: dict[int, int] = {}
    async with open_admin(options) as admin:

        async def read_mark(task: int) -> None:
            found = await admin.list_group_offsets(names.whole_task_id(task), [MARKED])
            if MARKED in found:
                marks[task] = found[MARKED].offset

        for start in range(0, task_count, MARKS_AT_ONCE):
            tasks = range(start, min(start + MARKS_AT_ONCE, task_count))
            await asyncio.gather(*map(read_mark, tasks))
    return marks
