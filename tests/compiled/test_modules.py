"""The modules that can be compiled: what mypyc would take otherwise than the interpreter does."""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path

import pytest

from tools.compiled import MODULES, OVERLAY
from tools.places import ROOT


@pytest.mark.parametrize("module", MODULES)
def test_a_name_for_caught_errors_is_used_for_errors_of_one_type_only(module: str) -> None:
    # mypyc gives a function's variable one type, also where each handler binds it anew: an
    # error of another type is then a TypeError.
    for function in _functions(module):
        types: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                types.setdefault(node.name, set()).add(ast.unparse(node.type))
        assert {name: names for name, names in types.items() if len(names) > 1} == {}


@pytest.mark.parametrize("module", MODULES)
def test_nothing_asks_for_the_cause_of_an_error(module: str) -> None:
    # ``raise ... from`` compiles to a plain ``raise``: tracebacks still show what came before.
    tree = ast.parse((ROOT / module).read_text())
    asked = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert not {"__cause__", "__suppress_context__"} & set(asked)


@pytest.mark.skipif(
    str(OVERLAY) not in os.environ.get("PYTHONPATH", ""),
    reason="make test-compiled runs this",
)
def test_what_runs_is_the_compiled_module() -> None:
    names = [".".join(Path(module).with_suffix("").parts[1:]) for module in MODULES]
    files = [importlib.import_module(name).__file__ or "" for name in names]
    assert [file for file in files if not file.endswith(".so")] == []


def _functions(module: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((ROOT / module).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]
