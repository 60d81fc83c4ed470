"""Reads slices of one object with few requests: a request costs more than the bytes in between.

A gateway puts the batches of many producers into one object, each as a slice of its own. A reader
that follows the references to them wants most of the object, so neighbours are read together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c
from tidelog_core.errors import CorruptObject

from tidelog_node.diskless.recovery.range_reader import RangeReader

GAP_BYTES_MAX = 256 << 10  # between two slices that one request reads
RUN_BYTES_MAX = 8 << 20  # of one request, unless a slice is larger


class SlicePlace(NamedTuple):
    """The position and size of a slice in an object, and the CRC-32C of its bytes."""

    position: int
    size_bytes: int
    crc32c: int

    @property
    def end(self) -> int:
        """The position behind the slice."""
        return self.position + self.size_bytes


async def read_places(read: RangeReader, key: str, places: Sequence[SlicePlace]) -> list[bytearray]:
    """Return the bytes of the slices, in the order of ``places``.

    Raises ``ObjectNotFound``, ``CorruptObject`` if a CRC does not match, and the store's errors.
    """
    found = await read_unchecked(read, key, places)
    for place, data in zip(places, found, strict=True):
        check_place(data, place, key=key)
    return found


async def read_unchecked(
    read: RangeReader, key: str, places: Sequence[SlicePlace]
) -> list[bytearray]:
    """Return the object's bytes at these places, in their order; fewer if it is too short.

    Raises ``ObjectNotFound`` and the store's errors.
    """
    runs = read_runs(places)
    parts = await asyncio.gather(*(read(key, start, end) for start, end in runs))
    found: list[bytearray] = []
    for place in places:
        (data,) = [
            bytearray(memoryview(part)[place.position - start : place.end - start])
            for (start, end), part in zip(runs, parts, strict=True)
            if start <= place.position and place.end <= end
        ]
        found.append(data)
    return found


def read_runs(places: Iterable[SlicePlace]) -> list[tuple[int, int]]:
    """Return the ranges ``[start, end)`` to read; each slice is in one of them."""
    runs: list[tuple[int, int]] = []
    for place in sorted(set(places)):
        start, end = runs[-1] if runs else (place.position, place.position)
        new_end = max(end, place.end)
        if runs and place.position - end <= GAP_BYTES_MAX and new_end - start <= RUN_BYTES_MAX:
            runs[-1] = start, new_end
        else:
            runs.append((place.position, place.end))
    return runs


def check_place(data: bytes | bytearray, place: SlicePlace, *, key: str) -> None:
    """Raise ``CorruptObject`` unless these are the bytes of the slice."""
    if len(data) != place.size_bytes or crc32c(data) != place.crc32c:
        raise CorruptObject(
            key,
            f"the slice at {place.position} has {len(data)} of {place.size_bytes} bytes, or its"
            " CRC does not match",
        )
