"""Answers who did what to a topic, a group and so on, from the events in the audit topic."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tidelog_core.audit.events import AUDIT_TOPIC

from tidelog_spark.scanning import scan

# The fields of the events that are read here; ``tidelog_core.audit.events`` writes more.
_EVENT = (
    "class_uid int, status_id int, status_detail string, start_time long, end_time long,"
    " count long, auth_protocol string, metadata struct<uid: string, event_code: string>,"
    " actor struct<user: struct<name: string>>, src_endpoint struct<ip: string>,"
    " api struct<operation: string>,"
    " resources array<struct<type: string, name: string>>,"
    " unmapped struct<client_id: string>"
)
COLUMNS = (
    *("user", "host", "client_id", "kind", "operation", "resource_type", "resource", "outcome"),
    *("count", "first_time", "last_time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRequest:
    """The events that count; ``None`` for all.

    Times are Unix time in milliseconds; an event counts by the time of its end.
    """

    metadata: str  # URL of the metadata store
    objects: str  # and of the object store
    from_ms: int | None = None
    until_ms: int | None = None  # exclusive
    kind: str | None = None  # such as consume
    operation: str | None = None  # such as Fetch
    user: str | None = None  # such as User:alice
    resource_type: str | None = None  # such as Topic
    resource: str | None = None


def activity(spark: SparkSession, request: ActivityRequest) -> DataFrame:
    """Return a row for each user, host, client id, operation, resource and outcome.

    Its columns are ``COLUMNS``: ``count`` is the number of events, the times are those of the first
    and the last. Events without a resource, such as logins, have an empty one. Only tiered events
    are found: with ``segment.ms`` of the audit topic, those of the last hour are not.
    """
    events = _events(spark, request)
    rows = events.select(
        F.col("actor.user.name").alias("user"),
        F.col("src_endpoint.ip").alias("host"),
        F.col("unmapped.client_id").alias("client_id"),
        F.col("metadata.event_code").alias("kind"),
        F.coalesce("api.operation", "auth_protocol").alias("operation"),
        F.explode_outer("resources").alias("about"),
        F.when(F.col("status_id") == 1, "success")
        .otherwise(F.col("status_detail"))
        .alias("outcome"),
        *("count", "start_time", "end_time"),
    ).select(
        "*",
        F.coalesce("about.type", F.lit("")).alias("resource_type"),
        F.coalesce("about.name", F.lit("")).alias("resource"),
    )
    for column, wanted in (
        ("kind", request.kind),
        ("operation", request.operation),
        ("user", request.user),
        ("resource_type", request.resource_type),
        ("resource", request.resource),
    ):
        if wanted is not None:
            rows = rows.where(F.col(column) == wanted)
    return (
        rows.groupBy(*COLUMNS[:8])
        .agg(
            F.sum("count").alias("count"),
            F.timestamp_millis(F.min("start_time")).alias("first_time"),
            F.timestamp_millis(F.max("end_time")).alias("last_time"),
        )
        .orderBy(F.desc("count"), *COLUMNS[:8])
    )


def _events(spark: SparkSession, request: ActivityRequest) -> DataFrame:
    """Return each event once, though a node may have written it twice."""
    options = {"metadata": request.metadata, "objects": request.objects, "subscribe": AUDIT_TOPIC}
    if request.from_ms is not None:
        # Not by the events' own times: segments are skipped by these.
        options["startingTimestamp"] = str(request.from_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    records = scan(spark, options)  # the data source API is not in Spark 3.5, which EMR has
    parsed = F.from_json(F.col("value").cast("string"), _EVENT)
    events = records.select(parsed.alias("event")).select("event.*")
    if request.from_ms is not None:
        events = events.where(F.col("end_time") >= request.from_ms)
    if request.until_ms is not None:
        events = events.where(F.col("end_time") < request.until_ms)
    return events.withColumn("uid", F.col("metadata.uid")).dropDuplicates(["uid"])
