"""The probe of a store that keeps what it has; ``tests/aws/test_chains_s3.py`` has one that does not."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.diskless.chain.start_probe import check_creates_once, probe_key
from tidelog_core.diskless.wal.keys import parse_wal_key
from tidelog_core.objects.key_rules import check_key
from tidelog_core.objects.location import open_object_store


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_a_store_that_keeps_the_first_object_passes_and_is_left_empty(
    kind: str, tmp_path: Path
) -> None:
    if kind == "memory":
        from tidelog_core.objects.memory import MemoryObjectStore

        store = MemoryObjectStore()
    else:
        store = open_object_store(f"file://{tmp_path}/objects", may_be_new=True)
    for _ in range(2):
        await check_creates_once(store, "c", uuid4())
    assert [meta async for meta in store.list("")] == []
    await store.close()


def test_its_key_is_allowed_and_no_chains() -> None:
    key = probe_key("c", uuid4())
    check_key(key)
    assert parse_wal_key(key) is None
