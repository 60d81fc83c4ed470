"""``CONTRIBUTING.md`` names files, functions and targets that there are."""

from __future__ import annotations

import re

import pytest

from tools.places import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
TOP = "bench|cache_node|core|docs|functions|infra|sdk|spark|tests|tools"
PATHS = sorted(
    {
        *re.findall(rf"`((?:{TOP})/[\w./-]+)`", TEXT),
        *re.findall(r"`([\w-]+[.](?:txt|toml|yaml))`", TEXT),
    }
)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_named_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / target).is_file(), target


def test_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {name for names in re.findall(r"\bmake ([a-z -]+)", TEXT) for name in names.split()}
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    assert {"setup", "lint", "docs", "chaos"} <= named & targets
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= targets


def test_functions_that_are_named_are_in_a_file_that_is_named() -> None:
    sources = [(ROOT / path).read_text() for path in PATHS if path.endswith(".py")]
    steps = TEXT[TEXT.index("## How to add a topic setting") :]
    names = re.findall(r"`(_?[a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z]\w+)(?:[.]\w+)?`", steps)
    assert len(names) > 8
    for name in names:
        assert any(re.search(rf"\b(?:def|class) {name}\b|\b{name} =", text) for text in sources), (
            name
        )
