"""Object store URLs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.s3 import S3ObjectStore


def test_each_scheme_opens_its_store(tmp_path: Path) -> None:
    folder = open_object_store(f"file://{tmp_path}/with%20blank")
    assert isinstance(folder, FolderObjectStore)
    assert (tmp_path / "with blank").is_dir()
    assert isinstance(open_object_store("memory:"), MemoryObjectStore)
    assert isinstance(open_object_store("s3://bucket/some/prefix"), S3ObjectStore)
    asyncio.run(folder.close())


@pytest.mark.parametrize(
    "url",
    ["", "s3://", "s3:bucket", "file://host/path", "file:relative", "gs://b/c", "/a", "s3://b?x=y"],
)
def test_other_urls_are_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(InvalidConfig, match="must"):
        open_object_store(url)
