"""The schema registry in memory and in SQLite, and between processes that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal import journal, journal_checkpoints
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry

from tests.contracts.metadata_update import Open
from tests.contracts.schema_registry import SchemaRegistryContract, require_whole
from tests.support.memory_store import MemoryMetadataStore

SCHEMAS = 8
# Registers schemas in an order of its own and says so after each; it is killed by its parent.
WRITER = """
import asyncio, random, sys
from pathlib import Path
from tests.contracts.schema_registry import record
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted

async def main(path, name, count):
    registry = SchemaRegistry(SqliteMetadataStore(Path(path)))
    work = [(subject, n) for subject in "ab" for n in range(count)]
    random.Random(name).shuffle(work)
    for subject, n in work:
        fields = [f"f{i}" for i in range(n)]
        await registry.register(subject, Wanted(record("R", *fields)))
        print(n, flush=True)
    await registry.store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class TestRegistryInMemory(SchemaRegistryContract):
    @pytest.fixture
    def open(self) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            yield MemoryMetadataStore(latency=0)

        return open_store


class TestJournaledRegistryInMemory(TestRegistryInMemory):
    """The same with a copy of every change in a bucket."""

    @pytest.fixture(autouse=True)
    def bucket(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal, "CHECKPOINT_EVERY", 3)
        monkeypatch.setattr(journal, "KEPT", 8)
        monkeypatch.setattr(journal_checkpoints, "KEPT", 8)
        self.objects = MemoryObjectStore()

    def registry(self, store: MetadataStore) -> SchemaRegistry:
        return SchemaRegistry(store, committer=RegistryJournal(store, self.objects, "c"))


class TestRegistryInSqlite(SchemaRegistryContract):
    @pytest.fixture
    def open(self, tmp_path: Path) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            store = SqliteMetadataStore(tmp_path / "metadata.db")
            try:
                yield store
            finally:
                await store.close()

        return open_store


@pytest.mark.slow
async def test_processes_that_are_killed_leave_dense_ids(tmp_path: Path) -> None:
    """Each of four is killed after another number of schemas, and started until it ends."""
    path = tmp_path / "metadata.db"
    for kill_after in (1, 3, 6, 10, 2 * SCHEMAS):
        writers = [start_writer(path, f"writer {n}") for n in range(4)]
        for writer in writers:
            assert writer.stdout is not None
            for _ in range(kill_after):
                assert writer.stdout.readline()
        for writer in writers:
            if kill_after < 2 * SCHEMAS:
                writer.kill()
            writer.communicate(timeout=60)
        store = SqliteMetadataStore(path)
        await require_whole(store)
        await store.close()
    store = SqliteMetadataStore(path)
    assert await require_whole(store) == SCHEMAS
    await store.close()


def start_writer(path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(SCHEMAS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
