"""Checks what programs give to calls: lists of things, and partitions.

A text is a list of characters to Python, and an ACL one of its fields. ``delete_topics("orders")``
would delete six topics of one letter each.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TypeVar

from tidelog_core.model import TopicPartition

from tidelog.errors import InvalidRequest

T = TypeVar("T")


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


def partitions_of(pairs: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Return the partitions. Raises ``InvalidRequest`` as ``several`` and ``partition_of`` do."""
    return [partition_of(pair) for pair in several(pairs, "partitions")]
