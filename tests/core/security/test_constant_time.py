"""Secrets are compared in constant time (CVE-2021-38153)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tidelog_core.security

MODULES = sorted(Path(tidelog_core.security.__file__).parent.glob("*.py"))
SECRET = re.compile(r"(key|proof|signature|digest|password|secret|hash)s?$")


def compared_secrets(source: str) -> list[str]:
    """Return the comparisons with ``==`` and ``!=`` in which a secret's own value takes part."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        if any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops) and any(
            isinstance(operand, ast.Name | ast.Attribute)
            and SECRET.search(operand.id if isinstance(operand, ast.Name) else operand.attr)
            for operand in (node.left, *node.comparators)
        ):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_secret_is_compared_byte_by_byte(module: Path) -> None:
    assert compared_secrets(module.read_text()) == []


def test_such_a_comparison_would_be_found() -> None:
    source = "a.stored_key == b\nx != proof\nlen(proof) != 3\nname == 'x'"
    assert compared_secrets(source) == ["a.stored_key == b", "x != proof"]
