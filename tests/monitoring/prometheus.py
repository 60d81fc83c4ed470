"""A real Prometheus that scrapes nodes and evaluates the alert rules every second."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tools import promtool
from tools.alert_reference import RULES
from tools.places import ToolAbsent
from tools.ports import free_port
from tools.server_process import running

INTERVAL = "1s"
START_SECONDS_MAX = 60.0


class Prometheus:
    """Made by ``prometheus``."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        """Return the series of an expression."""
        asked = urllib.parse.urlencode({"query": expression})
        found: list[Mapping[str, Any]] = self._get(f"query?{asked}")["result"]
        return found

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=30) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(directory: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run it over the nodes' HTTP addresses. Raises ``ToolAbsent``."""
    program = promtool.command("prometheus")
    if program is None:
        raise ToolAbsent("Prometheus is not installed: python -m tools.install")
    directory.mkdir()
    (directory / "alerts.yaml").write_text(yaml.safe_dump(impatient_rules()))
    settings = {
        "global": {
            "scrape_interval": INTERVAL,
            "scrape_timeout": INTERVAL,
            "evaluation_interval": INTERVAL,
        },
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": "tidelog", "static_configs": [{"targets": list(targets)}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    with running(
        "prometheus",
        [
            program,
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        port=port,
        start_seconds_max=START_SECONDS_MAX,
        log_path=directory / "prometheus.log",
        serves=_is_ready,
    ):
        yield Prometheus(port)


def _is_ready(port: int) -> bool:
    """Return whether it answers questions; until then it refuses them."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
            return True
    except OSError:  # urllib's errors too
        return False


def impatient_rules() -> Mapping[str, Any]:
    """Return the rules for a test: at once instead of after minutes, seconds instead of quarters.

    What they ask, and of which metrics, is the same.
    """
    document: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            expression = re.sub(r"(seconds\)? >) \d+", r"\1 1", rule["expr"])
            expression = re.sub(r"\[\d+[mh]\]", "[30s]", expression)
            rule["expr"] = re.sub(r"offset \d+[mh]", "offset 30s", expression)
    return document
