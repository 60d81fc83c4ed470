"""Replicas read a folder's objects themselves, and those of other stores by way of the worker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tidelog_core.errors import InvalidObjectKey, ObjectNotFound, WrongObjectStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.range_reader import range_reader


async def test_objects_of_a_folder_are_read_without_the_store(tmp_path: Path) -> None:
    folder, elsewhere = FolderObjectStore(tmp_path), MemoryObjectStore()
    await folder.put("c/wal/1", b"0123456789")
    with ThreadPoolExecutor(1) as executor:
        read = range_reader(f"file://{tmp_path}", elsewhere, executor)
        assert await read("c/wal/1", 2, 5) == b"234"
        assert await read("c/wal/1", 8, 50) == b"89"
        with pytest.raises(ObjectNotFound):
            await read("c/wal/2", 0, 5)
        with pytest.raises(InvalidObjectKey):
            await read("../c", 0, 5)
    await folder.close()


async def test_the_store_decides_that_an_object_is_missing(tmp_path: Path) -> None:
    """A file system that is not mounted does not look like the end of a chain."""
    store = FolderObjectStore(tmp_path / "objects")
    await store.put("c/wal/1", b"0123456789")
    with ThreadPoolExecutor(1) as executor:
        read = range_reader(f"file://{tmp_path}/objects", store, executor)
        with pytest.raises(ObjectNotFound):
            await read("c/wal/2", 0, 5)
        (tmp_path / "objects").rename(tmp_path / "elsewhere")
        (tmp_path / "objects").mkdir()
        with pytest.raises(WrongObjectStore):
            await read("c/wal/1", 0, 5)
    await store.close()


async def test_objects_of_other_stores_are_read_by_the_store() -> None:
    store = MemoryObjectStore()
    await store.put("c/wal/1", b"0123456789")
    with ThreadPoolExecutor(1) as executor:
        read = range_reader("s3://bucket", store, executor)
        assert await read("c/wal/1", 2, 5) == b"234"
