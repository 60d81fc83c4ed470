"""The modules, functions and programs of Python that pages name are there."""

from __future__ import annotations

import pkgutil
import re
from importlib.util import find_spec

import pytest

from tools.places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAME = re.compile(r"\btidelog_[a-z]+(?:[.](?!py\b)\w+)+")
PROGRAM = re.compile(r"-m (tidelog\w*(?:[.]\w+)*)")


def _found(pattern: re.Pattern[str]) -> list[str]:
    return sorted({name for page in PAGES for name in pattern.findall(page.read_text())})


@pytest.mark.parametrize("name", _found(NAME))
def test_a_name_of_a_page_can_be_imported(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("name", _found(PROGRAM))
def test_a_program_of_a_page_is_a_module(name: str) -> None:
    assert find_spec(name) is not None
