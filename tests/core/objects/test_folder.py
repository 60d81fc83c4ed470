"""The folder store keeps the contract, across processes and crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest
from tidelog_core.errors import (
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    WrongObjectStore,
)
from tidelog_core.objects.folder import FolderObjectStore

from tests.contracts.folder_objects import FolderObjectsContract


class TestFolderObjectStore(FolderObjectsContract):
    """In the process that asks."""


ENDLESS_WRITER = """
import asyncio, sys
from pathlib import Path
from tidelog_core.objects.folder import FolderObjectStore
async def main():
    store = FolderObjectStore(Path(sys.argv[1]))
    data = bytes([int(sys.argv[2])]) * 4_000_000
    number = 0
    while True:
        await store.put(f"deep/{sys.argv[2]}/{number}", data)
        print(number, flush=True)
        number += 1
asyncio.run(main())
"""


async def test_killing_a_writer_at_any_moment_leaves_only_whole_objects(tmp_path: Path) -> None:
    """Acknowledged objects are there, unacknowledged ones whole or absent, no litter stays."""
    folder = tmp_path / "objects"
    for attempt in range(5):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ENDLESS_WRITER, folder, str(attempt)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        acknowledged = [int(await child.stdout.readline())]
        await asyncio.sleep(0.003 * attempt)
        child.send_signal(signal.SIGKILL)
        acknowledged += map(int, (await child.stdout.read()).split())
        await child.wait()

        store = FolderObjectStore(folder)
        metas = [meta async for meta in store.list(f"deep/{attempt}/")]
        assert {m.size_bytes for m in metas} == {4_000_000}
        assert {int(m.key.rsplit("/", 1)[1]) for m in metas} >= set(acknowledged)
        for meta in metas:
            assert set(await store.get(meta.key)) == {attempt}
        await store.close()
        assert list((folder / ".staging").iterdir()) == []


RACING_WRITER = """
import asyncio, sys
from pathlib import Path
from tidelog_core.errors import ObjectExists
from tidelog_core.objects.folder import FolderObjectStore
async def main():
    store = FolderObjectStore(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(50):
        try:
            await store.put(f"race/{number}", sys.argv[2].encode() * 1000)
        except ObjectExists:
            continue
        print(number, flush=True)
    await store.close()
asyncio.run(main())
"""


def test_of_racing_processes_one_wins_each_key(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACING_WRITER, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    won: dict[int, str] = {}
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child, name in zip(children, "abc", strict=True):
        output, _ = child.communicate()
        assert child.returncode == 0
        for line in output.split():
            assert won.setdefault(int(line), name) == name
    assert sorted(won) == list(range(50))
    for number, name in won.items():
        assert (folder / "race" / str(number)).read_text() == name * 1000


async def test_opening_removes_what_a_dead_writer_left_and_spares_what_is_being_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "objects"
    (folder / ".staging").mkdir(parents=True)
    (folder / ".staging" / "left").write_bytes(b"half")
    store = FolderObjectStore(folder)
    with store._staged() as (staged, _):
        second = FolderObjectStore(folder)
        assert list((folder / ".staging").iterdir()) == [staged]
        await second.close()
    await store.close()


async def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """As with a file system that is not mounted any more: its objects would be hidden later."""
    store = FolderObjectStore(tmp_path / "objects")
    await store.put("a", b"1")
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    with pytest.raises(WrongObjectStore, match=f"another folder .* at {tmp_path}/objects, or none"):
        await store.put("b", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    await store.close()


async def test_a_folder_in_which_an_object_was_read_is_not_made_again(tmp_path: Path) -> None:
    first = FolderObjectStore(tmp_path / "objects")
    await first.put("a", b"1")
    await first.close()
    store = FolderObjectStore(tmp_path / "objects")
    assert await store.get("a") == b"1"
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    with pytest.raises(WrongObjectStore):
        await store.put("b", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    (tmp_path / "elsewhere").rename(tmp_path / "objects")
    await store.put("b", b"2")
    assert await store.get("b") == b"2"
    await store.close()


async def test_nothing_counts_as_missing_in_a_folder_that_took_the_place(tmp_path: Path) -> None:
    """Whoever cleans up would take the objects of the other folder for deleted."""
    folder = tmp_path / "objects"
    store = FolderObjectStore(folder)
    await store.put("a", b"1")
    folder.rename(tmp_path / "elsewhere")
    for _ in range(2):  # There is none, then an empty one.
        with pytest.raises(WrongObjectStore):
            await store.get("a")
        with pytest.raises(WrongObjectStore):
            await store.head("a")
        with pytest.raises(WrongObjectStore):
            await store.delete(["a"])
        with pytest.raises(WrongObjectStore):
            assert [meta async for meta in store.list("")]
        (folder / ".staging").mkdir(parents=True, exist_ok=True)
    with pytest.raises(WrongObjectStore):
        await store.put("a", b"2")
    assert [path.name for path in folder.rglob("*")] == [".staging"]
    await store.close()


async def test_a_copy_without_a_folder_for_staging_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    store = FolderObjectStore(tmp_path)
    assert await store.get("a") == b"1"
    await store.put("b", b"2")
    assert await store.get("b") == b"2"
    await store.close()


async def test_a_folder_that_goes_during_a_write_leaves_its_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "objects", os.link
    store = FolderObjectStore(folder)
    await store.put("a", b"1")

    def link_and_move(source: Path, target: Path) -> None:
        link(source, target)
        folder.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(os, "link", link_and_move)
    with pytest.raises(OutcomeUnknown, match="'b' may be hidden later"):
        await store.put("b", b"2")
    assert (tmp_path / "elsewhere" / "b").read_bytes() == b"2"
    await store.close()


async def test_a_folder_that_goes_before_an_object_is_named_is_not_made_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "objects"
    store = FolderObjectStore(folder)
    await store.put("a", b"1")

    def write_and_move(file: BinaryIO) -> None:
        file.write(b"2")
        folder.rename(tmp_path / "elsewhere")

    with pytest.raises(WrongObjectStore):
        await store.put_filled("new/below/b", write_and_move, timeout_s=10)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    await store.close()


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


UNDER_A_MOUNT = """
import asyncio, subprocess, sys
from pathlib import Path
from tidelog_core.errors import StoreUnavailable
from tidelog_core.objects.folder import FolderObjectStore

async def main():
    mount, folder = Path(sys.argv[1]), Path(sys.argv[1]) / "objects"
    below = FolderObjectStore(folder)  # The folder below the mount has been written before.
    await below.put("below", b"")
    await below.close()
    subprocess.run(["mount", "-t", "tmpfs", "none", mount], check=True)
    store = FolderObjectStore(folder)
    await store.put("above", b"")
    subprocess.run(["umount", mount], check=True)
    try:
        await store.put("hidden", b"")
    except StoreUnavailable as error:
        print(type(error).__name__)
    subprocess.run(["mount", "-t", "tmpfs", "none", mount], check=True)
    try:
        await store.put("hidden", b"")
    except StoreUnavailable as error:
        print(type(error).__name__)
    print(sorted(path.name for path in mount.iterdir()))
    subprocess.run(["umount", mount], check=True)
    print(sorted(path.name for path in folder.iterdir()))
    await store.close()

asyncio.run(main())
"""


@pytest.mark.skipif(not may_mount(), reason="needs Linux with user namespaces that may mount")
def test_a_mount_that_goes_or_comes_under_a_process_swallows_no_write(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", UNDER_A_MOUNT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (
        ["WrongObjectStore", "WrongObjectStore", "[]", "['.staging', 'below']"],
        "",
    )


async def test_a_put_under_an_object_fails_without_harm(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    await store.put("a", b"1")
    with pytest.raises(StoreUnavailable, match="a/b"):
        await store.put("a/b", b"2")
    assert await store.get("a") == b"1"
    await store.put("folder/b", b"3")
    with pytest.raises(ObjectExists):
        await store.put("folder", b"4")
    with pytest.raises(ObjectNotFound):
        await store.get("folder")
    await store.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
async def test_a_full_disk_is_store_unavailable_and_leaves_nothing(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    with pytest.raises(StoreUnavailable):
        await store.put_file("a/b", tmp_path / "is not there")
    assert [meta.key async for meta in store.list("")] == []
    assert os.listdir(tmp_path / ".staging") == []  # noqa: PTH208
    await store.close()


async def test_a_file_is_stored_whole_where_the_kernel_copies_nothing_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_nothing(*_: int) -> int:
        return 0

    monkeypatch.setattr(os, "copy_file_range", copy_nothing, raising=False)
    data = os.urandom(3_000_001)
    source = tmp_path / "source"
    source.write_bytes(data)
    store = FolderObjectStore(tmp_path / "objects")
    await store.put_file("a/b", source)
    assert await store.get("a/b") == data
    await store.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux")
async def test_a_file_of_another_file_system_is_stored(tmp_path: Path) -> None:
    """The kernel does not copy between some file systems."""
    data = os.urandom(3_000_001)
    store = FolderObjectStore(tmp_path)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        await store.put_file("a/b", Path(file.name))
    assert await store.get("a/b") == data
    await store.close()
