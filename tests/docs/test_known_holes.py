"""The table of Kafka's holes in ``docs/internals/security.md`` names tests that there are."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tools.places import ROOT

TITLE = "## Holes that brokers have had"
PAGE = (ROOT / "docs/internals/security.md").read_text()
SECTION = PAGE.partition(TITLE)[2].partition("\n## ")[0]
CVE = re.compile(r"CVE-(\d{4}-\d{4,5})")


class Row(NamedTuple):
    """One row of the table."""

    numbers: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]  # file and function


def row_of(line: str) -> Row:
    """Return the row of ``| numbers | fault | `file`: a name; another. `file`: a name |``."""
    _, numbers, _, named, _ = line.split("|")
    tests = [
        (path, "test_" + sentence.strip(" .").replace(" ", "_"))
        for path, sentences in re.findall(r"`(tests/[^`]+)`: ([^`]+)", named)
        for sentence in sentences.split(";")
    ]
    return Row(tuple(re.findall(r"\d{4}-\d{4,5}", numbers)), tuple(tests))


ROWS = [row_of(line) for line in SECTION.splitlines() if re.match(r"[|] \d", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.numbers[0])
def test_the_tests_of_a_hole_are_there(row: Row) -> None:
    assert row.tests
    for path, function in row.tests:
        source = (ROOT / path).read_text()
        assert re.search(rf"^(async )?def {function}\b", source, re.MULTILINE), (path, function)


def test_every_hole_that_is_named_is_in_the_table() -> None:
    listed = {number for row in ROWS for number in row.numbers}
    folders = ("tests", "core", "cache_node", "sdk", "functions", "spark")
    named = {
        number
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for number in CVE.findall(path.read_text())
    }
    assert len(listed) >= 17
    assert named <= listed
