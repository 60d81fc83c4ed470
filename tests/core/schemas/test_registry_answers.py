"""What a schema of a registry refers to, found by asking for it."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog_core.schemas.model import RESOLVED_MAX, Reference
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.registry_answers import resolve_answer


def answer(text: str, *subjects: str) -> dict[str, Any]:
    references = [{"name": f"{one}.file", "subject": one, "version": 1} for one in subjects]
    return {"schema": text, "references": references} if references else {"schema": text}


def test_the_innermost_comes_first_and_each_is_asked_for_once() -> None:
    stored = {"a": answer("A", "c"), "b": answer("B", "c", "a"), "c": answer("C")}
    asked: list[str] = []

    def find(subject: str, version: int) -> dict[str, Any]:
        assert version == 1
        asked.append(subject)
        return stored[subject]

    assert resolve_answer(answer("top", "a", "b"), find) == (
        (Reference("c.file", "c", 1), "C"),
        (Reference("a.file", "a", 1), "A"),
        (Reference("b.file", "b", 1), "B"),
    )
    assert sorted(asked) == ["a", "b", "c"]


def test_schemas_that_refer_to_each_other_come_to_an_end() -> None:
    stored = {"a": answer("A", "b"), "b": answer("B", "a")}
    found = resolve_answer(answer("top", "a"), lambda subject, _: stored[subject])
    assert [text for _, text in found] == ["B", "A"]


@pytest.mark.parametrize("is_deep", [True, False])
def test_a_registry_that_names_ever_more_schemas_is_refused(is_deep: bool) -> None:
    asked: list[str] = []

    def find(subject: str, _: int) -> dict[str, Any]:
        asked.append(subject)
        return answer("text", f"{subject}x") if is_deep else answer("text")

    many = ["s"] if is_deep else [f"s{number}" for number in range(RESOLVED_MAX + 1)]
    with pytest.raises(InvalidSchema, match=f"more than {RESOLVED_MAX} schemas"):
        resolve_answer(answer("top", *many), find)
    assert len(asked) == RESOLVED_MAX


@pytest.mark.parametrize(
    "wrong", [{"references": [{}]}, {"references": 1}, {"references": ["x"]}, []]
)
def test_what_is_no_answer_is_an_error_that_callers_know(wrong: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        resolve_answer(wrong, lambda *_: {})
