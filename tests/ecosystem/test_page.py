"""``docs/ecosystem.md`` is of the programs and versions that ``make test-ecosystem`` runs."""

from __future__ import annotations

from tools.ecosystem import PAGE, PROGRAMS, row_of
from tools.places import ROOT


def test_the_page_has_every_program_with_its_version_and_a_pass() -> None:
    rows = {row.rpartition(" |")[0] for row in PAGE.read_text().splitlines()}
    for program in PROGRAMS:
        (found,) = (row for row in rows if row.startswith(row_of(program)))
        assert found.removeprefix(row_of(program)).strip().partition(" ")[2].startswith("passed")


def test_every_test_of_a_program_is_run() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/ecosystem/test_*.py")}
    assert files - {program.tests for program in PROGRAMS} == {"tests/ecosystem/test_page.py"}
