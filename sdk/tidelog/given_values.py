"""Checks what programs give to calls, where they give it: each error names the argument.

A text is a list of characters to Python, and an ACL one of its fields. ``delete_topics("orders")``
would delete six topics of one letter each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any, TypeVar

from tidelog_core.model import TopicPartition

from tidelog.errors import InvalidRequest

T = TypeVar("T")
MappingT = TypeVar("MappingT", bound=Mapping[Any, Any])


def several(values: Iterable[T], what: str) -> Iterable[T]:
    """Return the values. Raises ``InvalidRequest`` for one alone in place of a list."""
    is_one = isinstance(values, str | bytes) or hasattr(values, "_fields")
    if is_one or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} are given as a list, not {values!r} alone")
    return values


def partition_of(pair: tuple[str, int]) -> TopicPartition:
    """Return the partition. Raises ``InvalidRequest`` for something else than topic and number."""
    try:
        topic, number = pair
        # Any kind of integer: numbers out of tables are numpy's.
        if isinstance(topic, str) and not isinstance(number, bool) and index(number) >= 0:
            return TopicPartition(topic, index(number))
    except (TypeError, ValueError):
        pass
    raise InvalidRequest(f"a partition must be (topic, number), not {pair!r}")


def partition_number(number: int) -> int:
    """Return the number. Raises ``InvalidRequest`` if no partition can have it."""
    try:
        if not isinstance(number, bool) and index(number) >= 0:
            return index(number)
    except TypeError:
        pass
    raise InvalidRequest(f"a partition must be a number from 0 on, not {number!r}")


def number_above_zero(number: int, name: str) -> int:
    """Return an argument that is a count or a size. Raises ``InvalidRequest`` for anything else."""
    try:
        if not isinstance(number, bool) and index(number) > 0:
            return index(number)
    except TypeError:
        pass
    raise InvalidRequest(f"{name} must be an integer above zero, is {number!r}")


def waiting_time(time: float, name: str) -> float:
    """Return an argument that says how long to wait; not above zero: not at all.

    Raises ``InvalidRequest`` for anything but a number.
    """
    try:
        number = float(time) if isinstance(time, Real) and not isinstance(time, bool) else math.nan
    except (TypeError, OverflowError):  # A duration of numpy's is a ``Real``, and no float.
        number = math.nan
    if not math.isnan(number):  # That would be a wait without an end.
        return number
    raise InvalidRequest(f"{name} must be a number, is {time!r}")


def integer(number: int, name: str) -> int:
    """Return an argument that is an integer. Raises ``InvalidRequest`` for anything else."""
    try:
        if not isinstance(number, bool):
            return index(number)
    except TypeError:
        pass
    raise InvalidRequest(f"{name} must be an integer, is {number!r}")


def text(value: str, name: str) -> str:
    """Return an argument that is a text. Raises ``InvalidRequest`` for anything else."""
    return instance(value, str, name)


def instance(value: T, kind: type[T], name: str) -> T:
    """Return an argument of the type. Raises ``InvalidRequest`` for one of another type."""
    if isinstance(value, kind):
        return value
    raise InvalidRequest(f"{name} must be of the type {kind.__name__}, is {value!r}")


def mapping(values: MappingT, name: str, entries: str) -> MappingT:
    """Return an argument that is a mapping. Raises ``InvalidRequest`` for anything else."""
    if isinstance(values, Mapping):
        return values
    raise InvalidRequest(f"{name} must be a dict of {entries}, not {values!r}")


def partitions_of(pairs: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Return the partitions. Raises ``InvalidRequest`` as ``several`` and ``partition_of`` do."""
    return [partition_of(pair) for pair in several(pairs, "partitions")]
