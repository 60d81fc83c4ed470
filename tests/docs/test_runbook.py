"""The runbook's commands parse, its alerts are those of the rules, its log lines the program's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.quoted_commands import commands_of, problem_of
from tests.support.source_texts import is_in_source, quoted_in
from tools.places import ROOT

RUNBOOK = ROOT / "docs" / "runbook.md"
MIGRATION = ROOT / "docs" / "migrate.md"
ALERTS = ROOT / "infra" / "monitoring" / "alerts.yaml"
STATUS_TEXTS = ("all is well", "degraded")


def _alerts() -> Iterator[str]:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"]


@pytest.mark.parametrize(("page", "count_min"), [(RUNBOOK, 50), (MIGRATION, 5)])
def test_every_command_parses(page: Path, count_min: int) -> None:
    commands = list(commands_of(page.read_text()))
    assert len(commands) >= count_min
    assert [problem for one in commands if (problem := problem_of(one))] == []


@pytest.mark.parametrize(
    "command",
    [
        "tidelog statu",
        "tidelog status --chek",
        "tidelog node",
        "tidelog node drain",
        "tidelog node drain two",
        "tidelog topic alter orders --partitions",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert problem_of((command, True)) is not None


def test_a_command_that_is_only_named_needs_no_arguments() -> None:
    assert problem_of(("tidelog node drain", False)) is None
    assert problem_of(("tidelog node drian", False)) is not None


def test_the_alerts_are_those_of_the_rules() -> None:
    named = set(re.findall(r"\bTidelog[A-Z]\w+", RUNBOOK.read_text()))
    assert named == set(_alerts())


def test_every_quoted_log_line_is_in_the_source() -> None:
    quoted = [text for text in quoted_in(RUNBOOK.read_text()) if text not in STATUS_TEXTS]
    assert len(quoted) > 20
    assert [text for text in quoted if not is_in_source(text)] == []


def test_a_line_that_nothing_logs_is_found() -> None:
    assert not is_in_source("disk is rather full")
