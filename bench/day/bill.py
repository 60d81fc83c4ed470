"""Computes a simulated day's bill, by the prices of ``tools.aws_cost`` and ``prices``."""

from __future__ import annotations

from bench.day.amounts import Amounts
from bench.day.hours import Day, Hour
from bench.day.prices import DYNAMODB_GB_MONTH, GET_THOUSAND
from bench.day.scenario import Scenario
from tools.aws_cost import (
    ENDPOINTS,
    FUNCTION_GB,
    FUNCTION_SECONDS_PER_SEGMENT,
    HOURS,
    PRICES,
    SWEEP_SECONDS,
    Line,
)

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
    machine = scenario.machine.hour + PRICES.volume_month / HOURS
    return [
        Line("machines", scenario.machines * machine),
        Line("transfer between zones", sum(hour.across_gb.values()) * PRICES.zone_transfer_gb),
        Line("S3 storage", hour.stored_gb * PRICES.storage_gb_month / HOURS),
        Line(
            "S3 requests",
            puts / 1000 * PRICES.put_thousand + gets / 1000 * GET_THOUSAND,
        ),
        Line("DynamoDB, offset commits", offsets * PRICES.write_million / 1e6),
        Line("DynamoDB, other writes", others * PRICES.write_million / 1e6),
        Line(
            "DynamoDB, reads and storage",
            sum(load.reads.values()) * PRICES.read_million / 1e6
            + TABLE_GB * DYNAMODB_GB_MONTH / HOURS,
        ),
        Line(
            "functions and events",
            seconds * FUNCTION_GB * PRICES.function_gb_second
            + hour.function_calls * PRICES.function_call_million / 1e6
            + hour.copied * EVENTS_PER_SEGMENT * PRICES.event_million / 1e6,
        ),
        Line(
            "endpoints, load balancer, logs",
            ENDPOINTS * PRICES.endpoint_hour + PRICES.balancer_hour + PRICES.fixed_month / HOURS,
        ),
    ]


def of_day(day: Day) -> list[Line]:
    """Return the bill of the day."""
    totals = Amounts()
    for hour in day.hours:
        for line in of_hour(day.scenario, hour):
            totals[line.what] += line.dollars
    return [Line(what, dollars) for what, dollars in totals.items()]
