"""Object store URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig, ObjectNotFound, StoreNotFound
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.location import (
    ObjectLocation,
    make_local_folder,
    open_object_store,
    parse_object_location,
)
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.s3 import S3ObjectStore


async def test_each_scheme_opens_its_store(tmp_path: Path) -> None:
    (tmp_path / "with blank").mkdir()
    folder = open_object_store(f"file://{tmp_path}/with%20blank")
    assert isinstance(folder, FolderObjectStore)
    assert isinstance(open_object_store("memory:"), MemoryObjectStore)
    assert isinstance(open_object_store("s3://bucket/some/prefix"), S3ObjectStore)
    await folder.close()


def test_a_folder_that_is_missing_is_refused_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "bucked"
    with pytest.raises(StoreNotFound, match=f"no object store at {missing}: check") as raised:
        open_object_store(f"file://{missing}")
    assert raised.value.path == missing
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(StoreNotFound):
            open_object_store(f"file://{tmp_path}/{path}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


async def test_a_store_that_may_be_new_is_empty_and_its_first_write_makes_the_folder(
    tmp_path: Path,
) -> None:
    store = open_object_store(f"file://{tmp_path}/new/bucket", may_be_new=True)
    assert [meta async for meta in store.list("")] == []
    with pytest.raises(ObjectNotFound):
        await store.get("a")
    await store.delete(["a"])
    assert list(tmp_path.iterdir()) == []
    await store.put("a", b"1")
    assert (tmp_path / "new" / "bucket" / "a").read_bytes() == b"1"
    await store.close()


async def test_a_store_that_is_only_read_leaves_nothing_in_its_folder(tmp_path: Path) -> None:
    store = open_object_store(f"file://{tmp_path}")
    assert [meta async for meta in store.list("")] == []
    await store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_local_store_can_be_made_before_anything_is_put(tmp_path: Path) -> None:
    make_local_folder(f"file://{tmp_path}/with%20blank/below")
    assert (tmp_path / "with blank" / "below").is_dir()
    make_local_folder("memory:")
    make_local_folder("s3://bucket/some/prefix")


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://b", ObjectLocation("s3", "b")),
        ("s3://b/", ObjectLocation("s3", "b")),
        ("s3://b//some/prefix/", ObjectLocation("s3", "b", "some/prefix/")),
        ("file:///a/with%20blank", ObjectLocation("file", "/a/with blank")),
        ("memory:", ObjectLocation("memory", "")),
    ],
)
def test_a_url_is_taken_apart_in_one_way(url: str, location: ObjectLocation) -> None:
    assert parse_object_location(url) == location


def test_keys_of_others_in_the_same_bucket_are_distinguished() -> None:
    location = parse_object_location("s3://b/some")
    assert location.relative("some/c/x") == "c/x"
    assert location.relative("something/c/x") is None
    assert parse_object_location("s3://b").relative("c/x") == "c/x"


@pytest.mark.parametrize(
    "url",
    [
        *("", "s3://", "s3:bucket", "file://host/path", "file:relative", "gs://b/c", "/a"),
        *("s3://b?x=y", "s3://b/x#y", "s3://b/x//y", "s3://b/x/../y", "s3://b/./y"),
    ],
)
def test_other_urls_are_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(InvalidConfig, match="must"):
        open_object_store(url)
