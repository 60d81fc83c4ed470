"""``docs/metrics.md`` is what its generator writes, and the table is well-formed."""

from __future__ import annotations

import re

import pytest
from tidelog_node.monitoring.table import METRICS, SECTIONS, Kind, MetricSpec

from tools.metrics import PAGE, metrics_page


def test_page_is_the_one_that_the_generator_writes() -> None:
    """``make docs`` writes it."""
    assert PAGE.read_text() == metrics_page()


def test_no_name_is_given_twice() -> None:
    assert len(METRICS) == sum(map(len, SECTIONS.values()))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_names_follow_the_rules_of_prometheus(metric: MetricSpec) -> None:
    assert re.fullmatch(r"tidelog_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_info"))
    assert not re.search(r"_(ms|milliseconds|mb|kb|kib|mib)(_|$)", metric.name)
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in metric.labels)
    assert metric.meaning[0].isupper() or metric.meaning[0].isdigit()
    assert not metric.meaning.endswith(".")
