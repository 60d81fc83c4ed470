"""One datum has one name in the log, so that a person can search for it."""

from __future__ import annotations

import ast

from tools.places import ROOT

# What else the same things were called, and what they are called.
NAMES = {
    **dict.fromkeys(("problem", "error", "why", "cause", "exception", "message"), "reason"),
    **dict.fromkeys(("node", "node_id", "broker"), "broker_id"),
    "group": "group_id",
}
PRODUCT = ("core", "cache_node", "functions", "sdk", "spark")


def test_a_datum_has_the_same_field_everywhere() -> None:
    found = []
    for path in sorted(path for root in PRODUCT for path in (ROOT / root).rglob("*.py")):
        text = path.read_text()
        if "extra=" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.keyword) or node.arg != "extra":
                continue
            for field in ast.walk(node.value):
                if isinstance(field, ast.Constant) and field.value in NAMES:
                    place = f"{path.relative_to(ROOT)}:{field.lineno}"
                    found.append(f"{place}: {field.value} is {NAMES[field.value]}")
    assert not found, "\n".join(found)
