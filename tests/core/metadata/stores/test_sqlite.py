"""SqliteMetadataStore: the contract, several processes, and death at any moment."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from tidelog_core.errors import CorruptItem, OutcomeUnknown, StoreFull, StoreUnavailable
from tidelog_core.metadata.store import ANY_VERSION, ClusterVersion, ItemKey, MetadataStore, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.contracts.metadata_store import (
    CHANGELOG_LENGTH,
    A,
    MetadataStoreContract,
    Open,
    Spoil,
    create,
)
from tests.faults.disk_faults import DiskFaults

# A process that commits pairs of items in step and says so after each commit.
WRITER = """
import asyncio, sys
from pathlib import Path
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.metadata.store import ABSENT, ItemKey, Write

async def main(path, name, count):
    store = SqliteMetadataStore(Path(path))
    shared = ItemKey("shared", "counter")
    for number in range(count):
        while True:
            item = await store.get(shared)
            n, version = (0, ABSENT) if item is None else (item.body["n"], item.version)
            try:
                await store.commit([
                    Write(shared, {"n": n + 1}, version),
                    Write(ItemKey("own:" + name, f"{number:06d}"), {"n": n + 1}, ABSENT),
                ])
            except VersionConflict:
                continue
            break
        print(number, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class TestSqliteMetadataStore(MetadataStoreContract):
    @pytest.fixture
    def open(self, tmp_path: Path) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            path = tmp_path / "metadata.db"
            store = SqliteMetadataStore(path, changelog_length=CHANGELOG_LENGTH)
            try:
                yield store
            finally:
                await store.close()

        return open_store

    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Spoil:
        def damage(key: ItemKey, with_version: bool) -> None:
            changes = "body = '{'" + ", version = 'seven'" * with_version
            with closing(sqlite3.connect(tmp_path / "metadata.db")) as connection, connection:
                where = (key.collection, key.key)
                connection.execute(
                    f"UPDATE items SET {changes} WHERE collection = ? AND key = ?", where
                )

        return damage

    async def test_processes_that_write_at_once_lose_nothing(self, tmp_path: Path) -> None:
        """Also opens a new file from all of them together."""
        path, names, count = tmp_path / "metadata.db", ["a", "b", "c", "d"], 40
        writers = [start_writer(path, name, count) for name in names]
        for writer in writers:
            writer.communicate(timeout=120)
            assert writer.returncode == 0

        store = SqliteMetadataStore(path)
        shared = await store.get(ItemKey("shared", "counter"))
        assert shared is not None
        total = len(names) * count
        assert (shared.body["n"], shared.version) == (total, total)
        own = [item.body["n"] for name in names for item in await store.list(f"own:{name}")]
        assert sorted(own) == list(range(1, total + 1))
        assert (await store.changes_since(ClusterVersion(0))).version == total
        await store.close()

    @pytest.mark.parametrize("after", [1, 7, 23, 60])
    async def test_a_killed_writer_leaves_whole_commits_and_all_it_reported(
        self, tmp_path: Path, after: int
    ) -> None:
        path = tmp_path / "metadata.db"
        victim = start_writer(path, "victim", 100_000)
        survivor = start_writer(path, "survivor", 30)
        assert victim.stdout is not None
        reported = [int(victim.stdout.readline()) for _ in range(after)][-1]
        victim.send_signal(signal.SIGKILL)
        # Not communicate: it would pass over the lines that are buffered already.
        rest = victim.stdout.read()
        victim.stdout.close()
        victim.wait(timeout=60)
        reported = max([reported, *map(int, rest.split("\n")[:-1])])
        survivor.communicate(timeout=60)
        assert survivor.returncode == 0

        store = SqliteMetadataStore(path)
        own = await store.list("own:victim")
        # The commit that was under way may have happened without a report.
        assert reported + 1 <= len(own) <= reported + 2
        shared = await store.get(ItemKey("shared", "counter"))
        assert shared is not None
        assert shared.body["n"] == len(own) + 30
        await store.commit([create(A)])
        await store.close()

    async def test_commits_survive_in_the_log_that_was_never_checkpointed(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "metadata.db"

        store = SqliteMetadataStore(path)
        await store.commit([create(A)])
        # A copy made now is what a crash would leave: the file and its log.
        for name in ("metadata.db", "metadata.db-wal"):
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
        await store.close()
        (tmp_path / "crashed").mkdir()
        for name in ("metadata.db", "metadata.db-wal"):
            (tmp_path / f"copy-{name}").rename(tmp_path / "crashed" / name)
        store = SqliteMetadataStore(tmp_path / "crashed" / "metadata.db")
        assert await store.get(A) is not None
        await store.close()

    async def test_the_file_syncs_every_commit(self, tmp_path: Path) -> None:
        store = SqliteMetadataStore(tmp_path / "metadata.db")
        await store.increment(A, 1)
        connection = store._writes._connection
        assert connection is not None
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        await store.close()

    async def test_the_changelog_stays_bounded(self, tmp_path: Path, open: Open) -> None:
        async with open() as store:
            for number in range(3 * CHANGELOG_LENGTH):
                await store.commit([Write(A, {"n": number}, -1)])
        connection = sqlite3.connect(tmp_path / "metadata.db")
        (count,) = connection.execute("SELECT count(*) FROM changelog").fetchone()
        connection.close()
        assert count == CHANGELOG_LENGTH

    async def test_a_writer_that_waits_too_long_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.db"

        store = SqliteMetadataStore(path, busy_timeout=0.2)
        assert await store.get(A) is None
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.commit([create(A)])
        assert time.monotonic() - started >= 0.2
        assert await store.get(A) is None  # Readers do not wait for writers.
        blocker.execute("ROLLBACK")
        blocker.close()
        await store.commit([create(A)])
        await store.close()

    async def test_a_file_that_is_no_database_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.db"
        path.write_bytes(b"not a database at all" * 100)

        store = SqliteMetadataStore(path)
        with pytest.raises(StoreUnavailable, match=r"metadata\.db.*not a database"):
            await store.get(A)
        await store.close()
        assert path.read_bytes().startswith(b"not a database")

    async def test_a_file_of_a_newer_format_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.db"
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()

        store = SqliteMetadataStore(path)
        with pytest.raises(StoreUnavailable, match="format 99"):
            await store.get(A)
        await store.close()

    @pytest.mark.parametrize(
        "body", ["", "{", "[]", "null", "7", b"\xff\xfe", b"\x00" * 9, "[" * 100_000]
    )
    async def test_a_body_that_is_none_is_a_problem_of_its_item(
        self, tmp_path: Path, open: Open, body: object
    ) -> None:
        async with open() as store:
            await store.commit([create(A)])
            with closing(sqlite3.connect(tmp_path / "metadata.db")) as connection, connection:
                connection.execute("UPDATE items SET body = CAST(? AS TEXT)", (body,))
            (item,) = await store.list(A.collection)
            assert item.problem
            with pytest.raises(CorruptItem, match="letters/a"):
                await store.increment(A, 1)

    async def test_a_full_disk_loses_the_commit_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.db"

        store = SqliteMetadataStore(path)
        await store.commit([create(A)])
        connection = store._writes._connection
        assert connection is not None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="full"):
            await store.commit([Write(ItemKey("big", "x"), {"pad": "x" * 300_000}, 0)])
        connection.execute("PRAGMA max_page_count = 1000000")
        assert await store.list("big") == []
        await store.commit([Write(ItemKey("big", "x"), {"pad": "x" * 300_000}, 0)])
        await store.close()
        assert os.path.getsize(path) > 300_000  # noqa: PTH202


@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal", "metadata.db-shm"])
async def test_a_store_whose_file_is_taken_away_takes_nothing_until_it_is_back(
    tmp_path: Path, name: str
) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await store.commit([create(A)])
    assert not store.is_lost()
    (tmp_path / name).rename(tmp_path / "aside")
    assert store.is_lost()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await store.get(A)
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await store.increment(ItemKey("counters", "n"), 1)
    shutil.copyfile(tmp_path / "aside", tmp_path / name)  # the same bytes, another file
    assert store.is_lost()
    (tmp_path / "aside").rename(tmp_path / name)
    assert not store.is_lost()
    assert await store.get(A) is not None
    await store.close()


async def test_a_commit_that_was_written_while_its_file_was_taken_away_is_not_believed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    await store.commit([create(A)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        commit = asyncio.create_task(store.commit([create(ItemKey("things", "late"))]))
        await asyncio.sleep(0.05)  # It has looked, and waits for its turn.
        path.unlink()
        other.execute("ROLLBACK")
        with pytest.raises(OutcomeUnknown, match="deleted or replaced"):
            await commit
    await store.close()


def _put_a_file(folder: Path) -> None:
    folder.touch()


def _put_a_link_to_itself(folder: Path) -> None:
    folder.symlink_to(folder)


@pytest.mark.parametrize("put", [_put_a_file, _put_a_link_to_itself])
async def test_a_store_whose_folder_cannot_be_entered_is_lost(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    """Whatever the system says of the path: nobody else reads what is written here."""
    folder = tmp_path / "store"

    store = SqliteMetadataStore(folder / "metadata.db")
    await store.commit([create(A)])
    folder.rename(tmp_path / "aside")
    put(folder)
    assert store.is_lost()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await store.get(A)
    unopened = SqliteMetadataStore(folder / "metadata.db")
    with pytest.raises(StoreUnavailable):
        await unopened.get(A)
    folder.unlink()
    (tmp_path / "aside").rename(folder)
    assert not store.is_lost()
    for each in (store, unopened):
        assert await each.get(A) is not None
        await each.close()


async def test_a_store_whose_file_is_taken_away_while_it_is_opened_is_not_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"

    store = SqliteMetadataStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(store.commit([create(A)]))
        await asyncio.sleep(0.05)  # It has the file, and waits for its turn.
        path.rename(tmp_path / "aside")
        other.execute("ROLLBACK")
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await opening
    (tmp_path / "aside").rename(path)
    await store.commit([create(A)])
    await store.close()


async def test_a_full_disk_is_named_as_such(tmp_path: Path) -> None:
    """The hint is what a node says that cannot start."""
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await store.commit([create(A)])

    def limit() -> None:
        assert store._writes._connection is not None
        store._writes._connection.execute("PRAGMA max_page_count = 1")

    await asyncio.get_running_loop().run_in_executor(store._writes._executor, limit)
    with pytest.raises(StoreFull, match="disk is full") as raised:
        await store.commit([Write(ItemKey("t", "large"), {"text": "x" * 200_000}, ANY_VERSION)])
    assert "make room" in raised.value.hint
    assert await store.get(A) is not None
    await store.close()


OPENER = """
import asyncio, sys
from pathlib import Path
from tidelog_core.errors import StoreFull
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

async def main(path):
    store = SqliteMetadataStore(Path(path), busy_timeout=0.1)
    try:
        await store.list("letters")
    except StoreFull as error:
        print(error)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_disk_without_room_for_the_shared_memory_is_full(tmp_path: Path) -> None:
    """The first of a store's processes makes that file, also if it only reads."""
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    await store.commit([create(A)])
    await store.close()
    faults = DiskFaults(tmp_path / "faults")
    faults.fail(errno.ENOSPC, ("write",), tmp_path / "metadata.db-shm")
    opened = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", OPENER, str(path)],
        env={**os.environ, **faults.environment()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert opened.stdout == f"metadata store {path}: disk I/O error\n"
