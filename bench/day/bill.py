"""Computes a simulated day's bill, by the prices of ``tools.aws_cost`` and ``prices``."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.cost.counts import (
    BYTES_PER_GB,
    FUNCTION_CALL,
    FUNCTION_EVENT,
    FUNCTION_TIME,
    HOUR_MS,
    MACHINE_VOLUME,
    METADATA_READ,
    METADATA_WRITE,
    OBJECT_GET,
    OBJECT_PUT,
    OBJECT_STORAGE,
    ZONE_TRANSFER,
    item_of,
    machine,
)

from bench.day.amounts import Amounts
from bench.day.hours import Day, Hour
from bench.day.prices import DYNAMODB_GB_MONTH
from bench.day.scenario import Scenario
from tools.aws_cost import (
    FUNCTION_GB,
    FUNCTION_SECONDS_PER_SEGMENT,
    HOURS,
    PRICES,
    SWEEP_SECONDS,
    Line,
)

UNITS = item_of(METADATA_WRITE).divisor  # in which units of DynamoDB are counted
TABLE_LINE = "DynamoDB, reads and storage"
EVENTS_PER_SEGMENT = 2  # one for each written object
TABLE_GB = 1.0  # half a million segments of 600 bytes, and a few other items


def of_hour(scenario: Scenario, hour: Hour) -> list[Line]:
    """Return the bill of the hour."""
    load = hour.load
    puts = sum(n for what, n in hour.requests.items() if what.startswith(("PUT", "LIST")))
    gets = sum(n for what, n in hour.requests.items() if what.startswith("GET"))
    seconds = hour.copied * FUNCTION_SECONDS_PER_SEGMENT
    seconds += (hour.function_calls - hour.copied) * SWEEP_SECONDS
    offsets = load.writes["offset commits"]
    others = sum(load.writes.values()) - offsets
    machine_ms = scenario.machines * HOUR_MS
    standing = PRICES.standing(HOUR_MS)
    counts: dict[str, Mapping[str, float]] = {
        "machines": {machine(scenario.machine.name): machine_ms, MACHINE_VOLUME: machine_ms},
        "transfer between zones": {ZONE_TRANSFER: sum(hour.across_gb.values()) * BYTES_PER_GB},
        "S3 storage": {OBJECT_STORAGE: hour.stored_gb / HOURS * item_of(OBJECT_STORAGE).divisor},
        "S3 requests": {OBJECT_PUT: puts, OBJECT_GET: gets},
        "DynamoDB, offset commits": {METADATA_WRITE: offsets * UNITS},
        "DynamoDB, other writes": {METADATA_WRITE: others * UNITS},
        TABLE_LINE: {METADATA_READ: sum(load.reads.values()) * UNITS},
        "functions and events": {
            FUNCTION_TIME: seconds * FUNCTION_GB * item_of(FUNCTION_TIME).divisor,
            FUNCTION_CALL: hour.function_calls,
            FUNCTION_EVENT: hour.copied * EVENTS_PER_SEGMENT,
        },
        "endpoints, load balancer, logs": standing,
    }
    table_dollars = TABLE_GB * DYNAMODB_GB_MONTH / HOURS
    lines = [Line(what, PRICES.dollars(some)) for what, some in counts.items()]
    return [
        Line(line.what, line.dollars + table_dollars) if line.what == TABLE_LINE else line
        for line in lines
    ]


def of_day(day: Day) -> list[Line]:
    """Return the bill of the day."""
    totals = Amounts()
    for hour in day.hours:
        for line in of_hour(day.scenario, hour):
            totals[line.what] += line.dollars
    return [Line(what, dollars) for what, dollars in totals.items()]
