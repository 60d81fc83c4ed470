"""Reads and commits of a SQLite store have a thread each, beside another process's writes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.store import ABSENT, ANY_VERSION, ClusterVersion, Item, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

A, B = ItemKey("letters", "a"), ItemKey("letters", "b")
START = ClusterVersion(0)
ROUNDS = 50

# A process that holds the write lock until it gets a line.
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


class LockHolder:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def release(self) -> None:
        await asyncio.to_thread(self._process.communicate, "\n", timeout=60)
        assert self._process.returncode == 0


@contextmanager
def lock_held(path: Path) -> Iterator[LockHolder]:
    """Have another process hold the file's write lock until ``release``."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield LockHolder(process)
        finally:
            process.kill()


async def begun(commit: asyncio.Task[None]) -> None:
    """Return once the commit's call is its thread's, or waits for that thread."""
    await asyncio.sleep(0)
    assert not commit.done()


async def test_reads_go_on_while_a_commit_waits_for_another_process(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await store.commit([Write(A, {"n": 1}, ABSENT)])
    with lock_held(tmp_path / "metadata.db") as holder:
        commit = asyncio.create_task(store.commit([Write(A, {"n": 2}, 1)]))
        await begun(commit)
        for _ in range(3):
            assert await store.get(A) == Item(A, 1, {"n": 1})
            assert await store.list("letters") == [Item(A, 1, {"n": 1})]
            assert await store.get_many([A, B]) == {A: Item(A, 1, {"n": 1})}
            assert (await store.changes_since(START)).keys == {A}
        assert not commit.done()
        await holder.release()
        await commit
    assert await store.get(A) == Item(A, 2, {"n": 2})
    await store.close()


async def test_a_store_is_opened_and_read_while_another_process_writes(tmp_path: Path) -> None:
    """Only a file that is not laid out yet has to wait for the lock."""
    path = tmp_path / "metadata.db"
    before = SqliteMetadataStore(path)
    await before.commit([Write(A, {"n": 1}, ABSENT)])
    await before.close()
    with lock_held(path) as holder:
        store = SqliteMetadataStore(path, busy_timeout=0)
        assert await store.get(A) == Item(A, 1, {"n": 1})
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.commit([Write(A, {"n": 2}, 1)])
        await holder.release()
    await store.close()


async def test_a_read_after_a_commit_shows_it_whatever_others_write(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store, other = SqliteMetadataStore(path), SqliteMetadataStore(path)
    seen = START
    for number in range(1, ROUNDS + 1):
        beside = asyncio.create_task(other.commit([Write(B, {"n": number}, ANY_VERSION)]))
        await store.commit([Write(A, {"n": number}, number - 1)])
        assert await store.get(A) == Item(A, number, {"n": number})
        assert Item(A, number, {"n": number}) in await store.list("letters")
        changes = await store.changes_since(seen)
        assert changes.keys is not None
        assert A in changes.keys
        seen = changes.version
        await beside
        assert await store.get(B) == Item(B, number, {"n": number})
    for each in (store, other):
        await each.close()


async def test_a_store_closes_after_the_commit_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    await store.commit([Write(A, {"n": 1}, ABSENT)])
    assert await store.get(A) is not None
    with lock_held(path) as holder:
        commit = asyncio.create_task(store.commit([Write(A, {"n": 2}, 1)]))
        await begun(commit)
        closing_store = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        assert not closing_store.done()
        assert not store.is_lost()
        await holder.release()
        await commit
        await closing_store
    again = SqliteMetadataStore(path)
    assert await again.get(A) == Item(A, 2, {"n": 2})
    await again.close()


async def test_a_store_that_has_only_read_does_not_write_to_another_file_of_its_path(
    tmp_path: Path,
) -> None:
    """The connection for writes is opened late: not if the path leads elsewhere by then."""
    path, aside = tmp_path / "metadata.db", tmp_path / "aside"
    before = SqliteMetadataStore(path)
    await before.commit([Write(A, {"n": 1}, ABSENT)])
    await before.close()
    shutil.copyfile(path, tmp_path / "copy")
    copied = path.read_bytes()
    store = SqliteMetadataStore(path)
    assert await store.get(A) is not None
    path.rename(aside)
    (tmp_path / "copy").rename(path)
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await store.commit([Write(A, {"n": 2}, 1)])
    assert path.read_bytes() == copied
    aside.rename(path)
    await store.commit([Write(A, {"n": 2}, 1)])
    await store.close()
