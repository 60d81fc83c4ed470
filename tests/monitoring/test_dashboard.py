"""Grafana's dashboard is what the tool makes, and asks for metrics that nodes have."""

from __future__ import annotations

import json
import re

import pytest
from tidelog_node.monitoring.table import METRICS

from tools import dashboard

OF_HISTOGRAMS = re.compile(r"_(bucket|count|sum)$")


def test_the_file_is_up_to_date() -> None:
    """If not: ``make docs``."""
    assert dashboard.FILE.read_text() == dashboard.dashboard_json()


@pytest.mark.parametrize("expression", dashboard.expressions())
def test_a_panel_asks_for_metrics_of_the_node(expression: str) -> None:
    names = set(re.findall(r"\b(?:tidelog|process)_\w+", expression))
    assert names
    known = {*METRICS, "process_cpu_seconds_total", "process_resident_memory_bytes"}
    assert {OF_HISTOGRAMS.sub("", name) for name in names} - known == set()


def test_every_panel_has_a_title_a_source_and_a_question() -> None:
    panels = json.loads(dashboard.FILE.read_text())["panels"]
    shown = [one for one in panels if one["type"] != "row"]
    assert len(shown) > 30
    for panel in shown:
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${source}"
        assert all(target["expr"] for target in panel["targets"])
