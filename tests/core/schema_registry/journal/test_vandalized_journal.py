"""Writers that are killed, on a bucket that loses objects all the time: nothing is lost for good."""

from __future__ import annotations

import asyncio
import random

import pytest
from tidelog_core.metadata.schema_records import SchemaJournal, SchemaText, schema_journal_key
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal import journal as journal_module
from tidelog_core.schema_registry.journal import journal_checkpoints as checkpoints_module
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import Wanted
from tidelog_core.tier.keys import schema_key
from tidelog_core.verification.schema_check import check_schemas

from tests.contracts.schema_registry import Killed, KilledStore, record, require_whole
from tests.core.schema_registry.journal.journals import (
    CLUSTER,
    items_of,
    registry_on,
    restored,
)
from tests.support.memory_store import MemoryMetadataStore

WRITERS, CHANGES = 3, 25
DAMAGED = b"{"


class Slow(MemoryObjectStore):
    """Other tasks run during its calls."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await self._wait()
        await super().put(key, data, kms_key_id=kms_key_id)
        await self._wait()

    async def get(self, key: str) -> bytes:
        await self._wait()
        return await super().get(key)

    async def _wait(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)


class World:
    """A cluster's stores, and the ids that writers were told."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"vandal {seed}")
        self.store = MemoryMetadataStore(latency=0)
        self.objects = Slow(self.chance)
        self.given: dict[str, int] = {}
        self.journals: list[RegistryJournal] = []
        self.lost_count = 0

    async def write(self, number: int) -> None:
        """Register schemas, by another process after each end."""
        chance = random.Random(f"writer {number} of {self.chance.random()}")
        registry = None
        for _ in range(CHANGES):
            if registry is None:
                registry = registry_on(KilledStore(self.store, chance), self.objects)
                assert isinstance(registry.committer, RegistryJournal)
                self.journals.append(registry.committer)
            schema = record("R", *(f"f{i}" for i in range(chance.randrange(12))))
            try:
                found = await registry.register(f"s{chance.randrange(3)}", Wanted(schema))
                assert self.given.setdefault(schema.text, found.schema_id) == found.schema_id
            except Killed:
                await self.journals[-1].close()
                registry = None

    async def damage(self) -> None:
        """Lose entries, all but the newest, until it is cancelled."""
        while True:
            for _ in range(self.chance.randrange(5, 60)):
                await asyncio.sleep(0)
            item = await self.store.get(schema_journal_key())
            if item is None or (last := SchemaJournal.from_item(item).sequence) < 4:
                continue
            key = schema_key(CLUSTER, self.chance.randrange(1, last - 1))
            if key in self.objects._objects:
                self.lost_count += 1
                del self.objects._objects[key]
                if self.chance.random() < 0.5:
                    self.objects._objects[key] = DAMAGED, 0

    async def mend(self) -> None:
        """Do what a person does, and a node that starts."""
        for journal in self.journals:
            await journal.settled()
            await journal.close()
        for key, (data, _) in list(self.objects._objects.items()):
            if data == DAMAGED:
                del self.objects._objects[key]
        for _ in range(2):
            journal = RegistryJournal(self.store, self.objects, CLUSTER)
            await journal.adopt()
            await journal.inspect()
            await journal.settled()


@pytest.mark.slow  # ``test_lost_entries`` loses each entry by itself.
@pytest.mark.parametrize("seed", range(8))
async def test_killed_writers_on_a_bucket_that_loses_entries_lose_no_schema(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(checkpoints_module, "KEPT", 8)
    world = World(seed)
    vandal = asyncio.create_task(world.damage())
    await asyncio.gather(*(world.write(number) for number in range(WRITERS)))
    vandal.cancel()
    await asyncio.gather(vandal, return_exceptions=True)
    assert world.lost_count > 10
    await world.mend()
    assert await check_schemas(world.objects, CLUSTER, world.store) == []
    await require_whole(world.store, is_dense=False)
    texts = [SchemaText.from_item(one) for one in await world.store.list("schema-text:.")]
    assert world.given.items() <= {one.text: one.schema_id for one in texts}.items()
    again, found = await restored(world.objects)
    assert found.problems == ()
    assert await items_of(again) == await items_of(world.store)
