"""``tidelog schema accept-loss`` names what it accepts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.tier.keys import schema_key

from tests.contracts.schema_registry import record
from tests.support.command import called

CLUSTER = "c1"


async def register(folder: Path, *, is_new: bool) -> int:
    """Return the id of a schema, as the first node of a cluster registers it, and a later one."""
    store = SqliteMetadataStore(folder / "metadata.db")
    if is_new:
        await store.commit([put(Cluster(cluster_id=CLUSTER))])
    journal = RegistryJournal(store, FolderObjectStore(folder / "objects"), CLUSTER)
    await journal.adopt()
    registry = SchemaRegistry(store, committer=journal)
    found = await registry.register("a", Wanted(record("R", *(("x",) if is_new else ("x", "y")))))
    await journal.settled()
    await store.close()
    return found.schema_id


def test_the_newest_entry_is_accepted_as_lost_by_its_name(tmp_path: Path) -> None:
    assert asyncio.run(register(tmp_path, is_new=True)) == 1
    key = schema_key(CLUSTER, 1)
    place = ("--data-dir", str(tmp_path))
    assert "is not lost" in called("schema", "accept-loss", key, *place, status=2).errors
    (tmp_path / "objects" / key).unlink()
    other = schema_key(CLUSTER, 7)
    assert re.search(key, called("schema", "accept-loss", other, *place, status=2).errors)
    called("schema", "accept-loss", key, *place)
    assert asyncio.run(register(tmp_path, is_new=False)) == 2
    assert "all is well" in called("verify", *place).out.decode()
