"""Secrets are compared in constant time (CVE-2021-38153)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.places import ROOT

# What sees secrets, and their digests, of clients and of nodes.
PACKAGES = (
    "core/tidelog_core/security",
    "cache_node/tidelog_node/authentication",
    "cache_node/tidelog_node/authorization",
    "cache_node/tidelog_node/dialing",
    "cache_node/tidelog_node/security",
    "functions/tidelog_functions/admin",
    "sdk/tidelog",
)
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SECRET = re.compile(r"(key|proof|signature|digest|password|secret|token|hash|hmac|mac)s?$")
PUBLIC = re.compile(r"api_key$|[A-Z_]+$")  # a constant is in the source


def name_of(operand: ast.expr) -> str:
    """Return the name of the operand's own value, or nothing."""
    match operand:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def compared_secrets(source: str) -> list[str]:
    """Return the comparisons by value in which a secret takes part."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        names = [name_of(operand) for operand in (node.left, *node.comparators)]
        if (
            any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
            and any(map(SECRET.search, names))
            and not any(map(PUBLIC.match, filter(None, names)))
        ):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_secret_is_compared_byte_by_byte(module: Path) -> None:
    assert compared_secrets(module.read_text()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_something_to_look_at(package: str) -> None:
    assert any((ROOT / package) in module.parents for module in MODULES)


def test_such_a_comparison_would_be_found() -> None:
    source = (
        "a.stored_key == b\nx != proof\nlen(proof) != 3\nname == 'x'\ntoken == END\napi_key == 3"
    )
    assert compared_secrets(source) == ["a.stored_key == b", "x != proof"]
