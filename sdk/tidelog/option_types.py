"""Checks that options have values of their types.

Programs take them from their environment, as texts: ``enable_auto_commit="false"`` would be true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import index
from typing import Any, SupportsIndex

MS_MAX = 2**31 - 1  # Kafka's own times have 32 bits.
TIME_SUFFIX = "_ms"


def type_problems(options: Any) -> list[str]:
    """Return a sentence for each option of a frozen dataclass whose value has another type."""
    problems = []
    for field in fields(options):
        kind = str(field.type).removesuffix(" | None")
        value = getattr(options, field.name)
        if value is None and kind != field.type:
            continue
        if kind in _PROBLEMS:
            problems += _PROBLEMS[kind](field.name, value)
    return problems


def number_problems(name: str, value: object) -> list[str]:
    """Return a sentence if it is no integer, or for a time no number below ``MS_MAX``."""
    is_time = name.endswith(TIME_SUFFIX)
    if isinstance(value, bool) or not isinstance(value, SupportsIndex | float):
        return [f"{name} must be {'a number' if is_time else 'an integer'}, is {value!r}"]
    if isinstance(value, float) and not is_time:
        return [f"{name} must be an integer, is {value!r}"]
    number = value if isinstance(value, float) else index(value)
    if is_time and not -math.inf < number <= MS_MAX:
        return [f"{name} must be at most {MS_MAX}, is {value}"]
    return []


def _bool_problems(name: str, value: object) -> list[str]:
    return [] if isinstance(value, bool) else [f"{name} must be True or False, is {value!r}"]


def _text_problems(name: str, value: object) -> list[str]:
    return [] if isinstance(value, str) else [f"{name} must be a text, is {value!r}"]


_PROBLEMS: Mapping[str, Callable[[str, object], list[str]]] = {
    "int": number_problems,
    "float": number_problems,
    "bool": _bool_problems,
    "str": _text_problems,
}
