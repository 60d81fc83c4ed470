"""``tidelog tier accept-store`` says what it has replaced, and nodes take the accepted store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tidelog_core.errors import WrongObjectStore
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.tier.store_identity import StoreIdentity

from tests.support.command import called

CLUSTER = "c"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The stores of a cluster of one node that has stopped."""

    async def make() -> None:
        metadata = SqliteMetadataStore(tmp_path / "metadata.db")
        await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
        await metadata.close()

    asyncio.run(make())
    check(tmp_path)
    return tmp_path


def check(folder: Path) -> None:
    """Check the store as a node that starts does. Raises ``WrongObjectStore``."""

    async def run() -> None:
        metadata = SqliteMetadataStore(folder / "metadata.db")
        objects = FolderObjectStore(folder / "objects")
        try:
            identity = StoreIdentity(metadata, lambda: ClusterImage(cluster_id=CLUSTER))
            await identity.check(objects)
        finally:
            await objects.close()
            await metadata.close()

    asyncio.run(run())


def test_a_node_takes_the_accepted_store(data_dir: Path) -> None:
    (data_dir / "objects").rename(data_dir / "lost")
    outcome = called("tier", "accept-store", "--data-dir", data_dir, status=1)
    assert f"no object store at {data_dir}/objects" in outcome.errors  # It may not be mounted.
    (data_dir / "objects").mkdir()
    with pytest.raises(WrongObjectStore):
        check(data_dir)
    outcome = called("tier", "accept-store", "--data-dir", data_dir)
    before, now, restart = outcome.errors.splitlines()
    assert "object store before: " in before
    assert f" in file://{data_dir}/objects" in now
    assert "none was known" not in before
    assert "restart the nodes" in restart
    check(data_dir)


def test_the_store_that_is_known_already_stays(data_dir: Path) -> None:
    metadata, objects = f"sqlite://{data_dir}/metadata.db", f"file://{data_dir}/objects"
    outcome = called("tier", "accept-store", "--metadata", metadata, "--objects", objects)
    assert f"{objects} is the cluster's object store already" in outcome.errors
    check(data_dir)
