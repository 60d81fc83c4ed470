"""Cuts a sequence into parts of one size, for requests and turns that are bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


@overload
def batched(items: list[T], size: int) -> Iterator[list[T]]: ...
@overload
def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]: ...
def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive slices of ``size`` items; the last one may be shorter.

    ``itertools.batched`` of Python 3.12 does the same with tuples.
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]
