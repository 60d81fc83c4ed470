"""The source of compiled modules keeps clear of a fault of mypyc."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tools.compiled import MODULES
from tools.places import ROOT

WITHOUT_EFFECT = {"len", "max", "min"}


@pytest.mark.parametrize("module", MODULES)
def test_no_bound_of_a_slice_has_an_effect(module: str) -> None:
    # mypyc evaluates the bounds twice: ``data[sock.send(data) :]`` would send twice.
    found = list(_calls_in_bounds((ROOT / module).read_text()))
    assert not [ast.unparse(call) for call in found if not _is_harmless(call)]


def test_a_call_in_a_bound_is_found() -> None:
    found = list(_calls_in_bounds("data = data[sock.send(data) :]\nrest = data[len(data) - 1 :]"))
    assert [_is_harmless(call) for call in found] == [False, True]


def _calls_in_bounds(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            yield from (one for one in ast.walk(node.slice) if isinstance(one, ast.Call))


def _is_harmless(call: ast.Call) -> bool:
    # A match of a regular expression has an end, and stays as it is.
    is_match_end = isinstance(call.func, ast.Attribute) and call.func.attr == "end"
    return is_match_end or (isinstance(call.func, ast.Name) and call.func.id in WITHOUT_EFFECT)
