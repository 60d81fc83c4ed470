"""Checks that options have values of their types.

Programs take them from their environment, as texts: ``enable_auto_commit="false"`` would be true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import index
from typing import Any, SupportsIndex

# As many bits as Kafka's settings of these names have. Others, such as limits of requests, go to
# nodes as 32 bits.
MS_MAX = 2**31 - 1
LONG_MS_MAX = 2**63 - 1  # ``max.block.ms`` has this value as a rule where it means «for ever».
LONG_TIMES = frozenset(
    {
        "linger_ms",
        "max_block_ms",
        "metadata_max_age_ms",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "retry_backoff_max_ms",
        "retry_backoff_ms",
        "socket_connection_setup_timeout_max_ms",
        "socket_connection_setup_timeout_ms",
    }
)
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
    """Return a sentence if it is no integer, or for a time no number up to its maximum."""
    is_time = name.endswith(TIME_SUFFIX)
    if isinstance(value, bool) or not isinstance(value, SupportsIndex | float):
        return [f"{name} must be {'a number' if is_time else 'an integer'}, is {value!r}"]
    if isinstance(value, float) and not is_time:
        return [f"{name} must be an integer, is {value!r}"]
    number = value if isinstance(value, float) else index(value)
    ms_max = LONG_MS_MAX if name in LONG_TIMES else MS_MAX
    if is_time and not -math.inf < number <= ms_max:
        return [f"{name} must be at most {ms_max}, is {value}"]
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
