"""Lines that CloudWatch makes metrics of: by its format, few, and equal to the node's metrics."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tidelog_core.setting_values.aws_names import parse_cloudwatch_cluster
from tidelog_node.assembly.monitoring import _write_to_log
from tidelog_node.monitoring.embedded_metrics import (
    EMBEDDED_METRICS,
    NAMESPACE,
    EmbeddedMetrics,
)
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.monitoring.sources import Sources
from tidelog_node.monitoring.table import METRICS, Kind

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.places import ROOT

SCHEMA = json.loads((ROOT / "tests" / "aws" / "embedded_metrics.schema.json").read_text())
LINE_BYTES_MAX = 4_096  # CloudWatch takes a megabyte; this is a bound on what a node logs
CUSTOM_METRICS_MAX = 20  # docs/deploy.md says what they cost


def writer(lines: list[str] | None = None) -> EmbeddedMetrics:
    return EmbeddedMetrics(
        Sources(),
        cluster="c",
        broker_id=7,
        clock_ms=lambda: 1_700_000_000_000,
        write=[].append if lines is None else lines.append,
    )


def checked(line: str) -> dict[str, Any]:
    """Return a line's fields, once CloudWatch would take it."""
    assert "\n" not in line
    assert len(line) <= LINE_BYTES_MAX
    fields: dict[str, Any] = json.loads(line)
    jsonschema_rs.validate(SCHEMA, fields)
    (directive,) = fields["_aws"]["CloudWatchMetrics"]
    for metric in directive["Metrics"]:
        assert isinstance(fields[metric["Name"]], int | float)
    for names in directive["Dimensions"]:
        assert all(isinstance(fields[name], str) and fields[name] for name in names)
    return fields


def test_a_line_of_an_empty_node_has_every_metric() -> None:
    fields = checked(writer().line(Scrape()))
    assert {one.name for one in EMBEDDED_METRICS} <= fields.keys()
    assert fields["cluster"] == "c"
    assert fields["_aws"]["Timestamp"] == 1_700_000_000_000


def test_the_metrics_that_cost_money_are_few_however_many_nodes_there_are() -> None:
    (directive,) = checked(writer().line(Scrape()))["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == NAMESPACE
    assert directive["Dimensions"] == [["cluster"]]
    assert len(directive["Metrics"]) == len(EMBEDDED_METRICS) <= CUSTOM_METRICS_MAX


def test_every_metric_is_made_of_one_of_the_node() -> None:
    for one in EMBEDDED_METRICS:
        assert METRICS[one.source].kind is not Kind.HISTOGRAM


def test_counters_are_what_was_added_and_gauges_what_is() -> None:
    lines = writer()
    for produced, behind in ((100.0, 3.0), (150.0, 3.0)):
        scrape = Scrape()
        scrape.add("tidelog_kafka_request_bytes_total", produced, "produce", "t")
        scrape.add("tidelog_kafka_request_bytes_total", produced, "produce", "u")
        scrape.add("tidelog_kafka_request_bytes_total", 7, "consume", "t")
        scrape.add("tidelog_kafka_under_replicated_partitions", behind)
        scrape.add("tidelog_kafka_consumer_group_lag_seconds", 5, "g", "t")
        scrape.add("tidelog_kafka_consumer_group_lag_seconds", 9, "g", "u")
        fields = checked(lines.line(scrape))
    assert fields["ProducedBytes"] == 100
    assert fields["ConsumedBytes"] == 0
    assert fields["UnderReplicatedPartitions"] == 3
    assert fields["GroupLag"] == 9


def test_a_counter_never_goes_back() -> None:
    """A topic that leaves the node takes its series along; a part that fails has none."""
    lines = writer()
    produced: list[float] = []
    for series in ({"t": 100.0, "u": 900.0}, {"t": 150.0}, {}, {"t": 170.0}):
        scrape = Scrape()
        for topic, value in series.items():
            scrape.add("tidelog_kafka_request_bytes_total", value, "produce", topic)
        produced.append(checked(lines.line(scrape))["ProducedBytes"])
    assert produced == [1000, 0, 0, 20]


def test_a_node_goes_on_when_nobody_reads_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(write_end, "w")))
    monkeypatch.setattr(sys, "stderr", stream)
    _write_to_log("a line")
    with suppress(OSError):
        stream.close()
    _write_to_log("a line")


def test_a_node_writes_them_to_its_log_without_an_http_port(tmp_path: Path) -> None:
    config = {"metrics.cloudwatch.cluster": "staging"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        eventually(lambda: '{"_aws"' in node.log)
        line = next(line for line in node.log.splitlines() if line.startswith('{"_aws"'))
    fields = checked(line)
    assert fields["cluster"] == "staging"
    assert fields["broker_id"] == "1"
    assert fields["DiskFree"] > 0


@pytest.mark.parametrize("text", ["a b", "x" * 129, "-a", 'a"', "é"])
def test_a_name_that_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_cloudwatch_cluster(text)
