"""Object store URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig
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
    folder = open_object_store(f"file://{tmp_path}/with%20blank")
    assert isinstance(folder, FolderObjectStore)
    assert (tmp_path / "with blank").is_dir()
    assert isinstance(open_object_store("memory:"), MemoryObjectStore)
    assert isinstance(open_object_store("s3://bucket/some/prefix"), S3ObjectStore)
    await folder.close()


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


def test_keys_of_others_in_the_same_bucket_are_told_apart() -> None:
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
