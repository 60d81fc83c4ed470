"""Neighbouring slices of an object are read by one request."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from tidelog_core.errors import CorruptObject
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.slice_reads import (
    GAP_BYTES_MAX,
    RUN_BYTES_MAX,
    SlicePlace,
    read_places,
    read_runs,
)


def place(position: int, size_bytes: int) -> SlicePlace:
    return SlicePlace(position, size_bytes, 0)


def test_neighbours_are_one_run_and_what_is_far_apart_are_several() -> None:
    near = [place(112, 10), place(130, 5), place(122, 8)]
    assert read_runs(near) == [(112, 135)]
    far = 135 + GAP_BYTES_MAX + 1
    assert read_runs([*near, place(far, 7)]) == [(112, 135), (far, far + 7)]
    assert read_runs([*near, place(far - 1, 7)]) == [(112, far + 6)]


def test_a_run_has_a_limit_but_for_one_slice() -> None:
    half = RUN_BYTES_MAX // 2
    halves = [place(0, half), place(half, half), place(2 * half, half)]
    assert read_runs(halves) == [(0, RUN_BYTES_MAX), (RUN_BYTES_MAX, RUN_BYTES_MAX + half)]
    assert read_runs([place(5, RUN_BYTES_MAX + 1)]) == [(5, RUN_BYTES_MAX + 6)]
    assert read_runs([]) == []


async def test_slices_are_returned_in_the_order_asked_for_and_checked() -> None:
    store = MemoryObjectStore()
    data = bytes(range(200))
    await store.put("key", data)
    places = [
        SlicePlace(at, size, crc32c(data[at : at + size])) for at, size in ((50, 9), (0, 3), (7, 4))
    ]
    found = await read_places(store.get_range, "key", places)
    assert found == [data[50:59], data[0:3], data[7:11]]
    for wrong in (places[0]._replace(crc32c=1), SlicePlace(199, 2, crc32c(data[199:]))):
        with pytest.raises(CorruptObject, match=f"slice at {wrong.position}"):
            await read_places(store.get_range, "key", [places[1], wrong])
