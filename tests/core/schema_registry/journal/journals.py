"""Registries with a journal, and what tests ask of them."""

from __future__ import annotations

import json
from typing import Any

from tidelog_core.metadata.store import ItemKey, MetadataStore, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.restoration.schemas import RestoredSchemas, restore_schemas
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility, Mode, Reference

from tests.contracts.schema_registry import record, referring
from tests.support.memory_store import MemoryMetadataStore

CLUSTER = "c"
A, B, C = record("R", "a"), record("R", "a", "b"), record("R", "a", "b", "c")
Items = dict[ItemKey, tuple[int, str]]  # of a store in memory: version and body


def registry_on(store: Any, objects: Any) -> SchemaRegistry:
    """Return the registry of one process."""
    return SchemaRegistry(store, committer=RegistryJournal(store, objects, CLUSTER))


async def settled(registry: SchemaRegistry) -> SchemaRegistry:
    """Return the registry once it has written its checkpoints."""
    assert isinstance(registry.committer, RegistryJournal)
    await registry.committer.settled()
    return registry


async def id_of(registry: SchemaRegistry, schema: Any, subject: str = "s-value") -> int:
    """Register a schema."""
    return (await registry.register(subject, Wanted(schema))).schema_id


async def restored(objects: MemoryObjectStore) -> tuple[MemoryMetadataStore, RestoredSchemas]:
    """Return a store that was restored from the bucket."""
    store = MemoryMetadataStore(latency=0)
    return store, await restore_schemas(objects, CLUSTER, store)


async def items_of(store: MetadataStore) -> dict[str, Any]:
    """Return the registry's items, all but the position."""
    names = ["schema-context", "schema-subject", "schema-settings"]
    for one in await store.list("schema-context"):
        names += [f"schema-text:{one.id.key}", f"schema-identity:{one.id.key}"]
    found = [one for name in names for one in await store.list(name)]
    return {
        f"{one.id.collection}/{one.id.key}": json.dumps(one.body, default=list) for one in found
    }


def copy_of(objects: MemoryObjectStore) -> MemoryObjectStore:
    """Return a copy: a restoration seals the journal."""
    made = MemoryObjectStore()
    made._objects = dict(objects._objects)
    return made


def store_with(items: Items) -> MemoryMetadataStore:
    """Return a store with these items."""
    made = MemoryMetadataStore(latency=0)
    made._items = dict(items)
    return made


async def fill(store: MetadataStore, objects: Any) -> None:
    """Register, refer, delete softly and for ever, and set levels, in two contexts."""
    registry = registry_on(store, objects)
    deletion, settings = SchemaDeletion(registry), RegistrySettings(registry)
    await settings.set_config("", RegistryConfig(Compatibility.FULL))
    await settings.set_config("s-value", RegistryConfig(Compatibility.NONE, normalize=True))
    for schema in (A, B, C):
        await id_of(registry, schema)
    await id_of(registry, A, ":.stage:s-value")
    await id_of(registry, referring("Order", Reference("R", "s-value", 2)), "order")
    await id_of(registry, record("Gone"), "gone")
    await deletion.delete_version("s-value", 3, is_permanent=False)
    await deletion.delete_subject("gone", is_permanent=False)
    await deletion.delete_subject("gone", is_permanent=True)
    await settings.set_mode("order", Mode.READONLY, force=False)
    await settled(registry)


async def filled() -> tuple[list[Items], MemoryObjectStore]:
    """Return what the store had after each of the changes, and the bucket after the last."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    states: list[Items] = []

    def note(writes: object) -> None:
        del writes
        states.append(dict(store._items))

    store.on_commit = note
    await fill(store, objects)
    return [*states[1:], dict(store._items)], objects


async def set_level(store: Any, objects: Any, number: int) -> None:
    """Make a change that no other change depends on."""
    levels = (Compatibility.FORWARD, Compatibility.BACKWARD)
    registry = registry_on(store, objects)
    await RegistrySettings(registry).set_config("x", RegistryConfig(levels[number % 2]))
    await settled(registry)


def older_write(items: Items, key: ItemKey, body: Any) -> Write:
    """Return a write as a program without a journal makes it."""
    return Write(key, body, items[key][0], False)
