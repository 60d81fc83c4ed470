"""Metadata stores count their requests; DynamoDB's units are in the contract's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.image.cluster_image import NO_VERSION
from tidelog_core.metadata.store import ABSENT, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.metadata.stores.usage import usage_of

KEY = ItemKey("things", "one")


async def test_requests_are_counted_by_operation_and_outcome(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    assert await store.get(KEY) is None
    await store.commit([Write(KEY, {"a": 1}, ABSENT)])
    with pytest.raises(VersionConflict):
        await store.commit([Write(KEY, {"a": 2}, ABSENT)])
    await store.list("things")
    await store.changes_since(NO_VERSION)
    usage = usage_of(store)
    assert usage is not None
    assert usage.requests == {
        ("get", "ok"): 1,
        ("commit", "ok"): 1,
        ("commit", "conflict"): 1,
        ("list", "ok"): 1,
        ("changes_since", "ok"): 1,
    }
    assert usage.seconds.keys() == {"get", "commit", "list", "changes_since"}
    assert usage.read_units == usage.write_units == 0
    await store.close()


def test_a_store_that_does_not_count_has_no_usage() -> None:
    assert usage_of(object()) is None
