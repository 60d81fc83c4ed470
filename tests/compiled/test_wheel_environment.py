"""The environment that compiles a wheel: it has less than that of development, and that is enough.

It has the packages that the compiled modules import. Those of other modules, which mypyc follows
for their types, may be missing.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import mypy.api
import pytest

from tools import wheels
from tools.compiled import MODULES, MYPY_OPTIONS
from tools.places import ROOT

OURS = {"tidelog", "tidelog_core", "tidelog_node"}


def test_what_the_compiled_modules_import_is_installed() -> None:
    installed = {_normal(one).removeprefix("types-") for one in wheels.requirements()}
    imported = {name for module in MODULES for name in _imported(ROOT / module)}
    others = imported - OURS - sys.stdlib_module_names - _without_types()
    assert "kio" in others
    assert {_normal(name) for name in others} <= installed


@pytest.mark.parametrize("is_compiled", [False, True], ids=["followed", "compiled"])
def test_only_what_is_compiled_has_to_be_without_errors(is_compiled: bool, tmp_path: Path) -> None:
    wrong = 'from not_installed import anything\n\ncount: int = anything + "one"\nother: int = ""\n'
    (tmp_path / "followed.py").write_text(wrong)
    (tmp_path / "compiled.py").write_text("from followed import count\n\ntwice = count * 2\n")
    checked = "followed" if is_compiled else "compiled"
    options = (*MYPY_OPTIONS, "--cache-dir", str(tmp_path / "cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", str(tmp_path))
        said, _, status = mypy.api.run([*options, str(tmp_path / f"{checked}.py")])
    assert (status == 0) is not is_compiled, said
    assert ("not_installed" in said) is is_compiled


def _imported(path: Path) -> Iterator[str]:
    """Yield the first names of the packages that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def _without_types() -> set[str]:
    """Return the packages that mypy may not find: their values have no types anyway."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    return {
        module.removesuffix(".*")
        for override in settings["overrides"]
        if override.get("ignore_missing_imports")
        for module in override["module"]
    }


def _normal(requirement: str) -> str:
    """Return the name of a requirement, as the index spells it."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
