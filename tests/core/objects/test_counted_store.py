"""A counted object store does what the store does, and counts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import ObjectExists, ObjectNotFound
from tidelog_core.objects.counted_store import GROUPS_MAX, CountedObjectStore
from tidelog_core.objects.memory import MemoryObjectStore


async def test_calls_are_counted_by_method_and_outcome(tmp_path: Path) -> None:
    store = CountedObjectStore(MemoryObjectStore())
    path = tmp_path / "file"
    path.write_bytes(b"z" * 7)
    await store.put("a", b"xx")
    await store.put_file("b", path)
    await store.replace("c", b"y")
    with pytest.raises(ObjectExists):
        await store.put("a", b"xx")
    assert await store.get("a") == b"xx"
    assert bytes(await store.get_range("b", 1, 4)) == b"zzz"
    with pytest.raises(ObjectNotFound):
        await store.get("missing")
    with pytest.raises(ObjectNotFound):
        await store.head("missing")
    assert [found.key async for found in store.list("")] == ["a", "b", "c"]
    await store.delete(["a", "b"])
    await store.delete([])
    assert store.usage.requests == {
        ("put", "ok"): 3,
        ("put", "exists"): 1,
        ("get", "ok"): 2,
        ("get", "not_found"): 1,
        ("head", "not_found"): 1,
        ("list", "ok"): 1,
        ("delete", "ok"): 1,
    }
    assert (store.usage.sent_bytes, store.usage.received_bytes) == (10, 5)
    assert set(store.usage.seconds) == {"put", "get", "head", "list", "delete"}
    await store.close()


async def test_a_listing_counts_its_pages_also_if_it_is_left(tmp_path: Path) -> None:
    store = CountedObjectStore(MemoryObjectStore())
    for number in range(2_500):
        await store.put(f"k{number:04}", b"")
    assert len([found async for found in store.list("")]) == 2_500
    assert store.usage.requests["list", "ok"] == 3
    await store.delete([f"k{number:04}" for number in range(2_500)])
    assert store.usage.requests["delete", "ok"] == 3


async def test_calls_are_counted_for_the_group_of_their_key() -> None:
    store = CountedObjectStore(MemoryObjectStore(), group_of=lambda key: key.partition("/")[0])
    await store.put("a/1", b"xx")
    await store.put("b/1", b"yyy")
    assert await store.get("a/1") == b"xx"
    assert [one.key async for one in store.list("b/")] == ["b/1"]
    await store.delete(["b/1", "a/1"])
    a, b = store.usage.by_group["a"], store.usage.by_group["b"]
    assert (a.requests, a.sent_bytes, a.received_bytes) == ({"put": 1, "get": 1}, 2, 2)
    assert (b.requests, b.sent_bytes) == ({"put": 1, "list": 1, "delete": 1}, 3)
    for number in range(GROUPS_MAX + 5):
        await store.put(f"c{number}/1", b"z")
    assert len(store.usage.by_group) == GROUPS_MAX
    assert store.usage.requests["put", "ok"] == GROUPS_MAX + 7


async def test_groups_that_are_used_no_more_make_room_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else deleted topics keep all places, and new ones are counted for nobody."""
    store = CountedObjectStore(MemoryObjectStore(), group_of=lambda key: key.partition("/")[0])
    for number in range(GROUPS_MAX):
        await store.put(f"old{number}/1", b"z")
    await store.get("old0/1")
    await store.put("early/1", b"z")
    assert "early" not in store.usage.by_group  # Those of the last hour stay.
    monkeypatch.setattr("tidelog_core.objects.counted_store.IDLE_SECONDS_MIN", 0.0)
    await store.put("new/1", b"zz")
    groups = store.usage.by_group
    assert (len(groups), groups["new"].sent_bytes) == (GROUPS_MAX, 2)
    assert "old0" in groups
    assert "old1" not in groups
