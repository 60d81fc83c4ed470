"""What every object store must do. Subclass, and give ``open_store``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from tidelog_core.errors import InvalidObjectKey, ObjectExists, ObjectNotFound
from tidelog_core.objects.filled_store import put_filled
from tidelog_core.objects.store import ObjectStore

BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\\b",
    "a b",
    "a\x00b",
    "a\n",
    "é",
    "a%2e%2e/b",
    ".staging/a",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]


class ObjectStoreContract:
    """The behaviour that callers rely on, whatever lies below."""

    # Names that others may give their objects there, and that are no keys of ours.
    foreign_starts: Sequence[str] = ("t/0/a.log", "t/0/a b", "t/0/é")
    foreign_keys: Sequence[str] = ("t/0/a b", "t/0/é", "t/0/a%2e", "t/0/a\\b", "x" * 200 + " ")

    def open_store(self) -> ObjectStore:
        """Return a new store; every call within one test reaches the same objects."""
        raise NotImplementedError

    def put_foreign(self, key: str) -> None:
        """Put an object as somebody may who knows nothing of our rules for keys."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ObjectStore]:
        store = self.open_store()
        try:
            yield store
        finally:
            await store.close()

    async def test_what_was_put_is_read_back(self) -> None:
        async with self.opened() as store:
            data = os.urandom(100_000)
            await store.put("a/b.log", data)
            assert await store.get("a/b.log") == data
            await store.put("empty", b"")
            assert await store.get("empty") == b""

    async def test_a_file_is_stored_byte_for_byte(self, tmp_path: Path) -> None:
        async with self.opened() as store:
            data = os.urandom(3_000_001)
            path = tmp_path / "file"
            path.write_bytes(data)
            await store.put_file("a/file", path)
            path.write_bytes(b"changed afterwards")
            assert await store.get("a/file") == data

    async def test_a_second_put_fails_and_leaves_the_first(self, tmp_path: Path) -> None:
        async with self.opened() as store:
            (tmp_path / "file").write_bytes(b"third")
            await store.put("a/b", b"first")
            with pytest.raises(ObjectExists) as caught:
                await store.put("a/b", b"second")
            assert caught.value.key == "a/b"
            with pytest.raises(ObjectExists):
                await store.put_file("a/b", tmp_path / "file")
            assert await store.get("a/b") == b"first"

    async def test_an_object_is_filled_where_it_stays(self) -> None:
        async with self.opened() as store:
            data = os.urandom(100_000)

            def fill(file: BinaryIO) -> int:
                file.write(bytes(10))
                file.write(data)
                file.seek(0)
                return file.write(b"first.....")

            def fail(file: BinaryIO) -> None:
                file.write(b"half")
                raise RuntimeError("the source cannot be read")

            with pytest.raises(RuntimeError):
                await put_filled(store, "a/filled", fail, timeout_s=60)
            assert await put_filled(store, "a/filled", fill, timeout_s=60) == 10
            assert await store.get("a/filled") == b"first....." + data
            with pytest.raises(ObjectExists):
                await put_filled(store, "a/filled", fill, timeout_s=60)
            assert [found.key async for found in store.list("")] == ["a/filled"]

    async def test_of_concurrent_writers_exactly_one_wins(self) -> None:
        async with self.opened() as store:

            async def write(number: int) -> int | None:
                try:
                    await store.put("races/one", b"%d" % number * 1000)
                except ObjectExists:
                    return None
                return number

            winners = [w for w in await asyncio.gather(*map(write, range(16))) if w is not None]
            assert len(winners) == 1
            assert await store.get("races/one") == b"%d" % winners[0] * 1000

    async def test_replace_writes_over_what_is_there(self) -> None:
        async with self.opened() as store:
            await store.replace("a/manifest.json", b"1")
            await store.replace("a/manifest.json", b"22")
            assert await store.get("a/manifest.json") == b"22"
            assert (await store.head("a/manifest.json")).size_bytes == 2

    async def test_a_range_is_half_open_and_stops_at_the_end(self) -> None:
        async with self.opened() as store:
            await store.put("a", b"0123456789")
            assert await store.get_range("a", 2, 5) == b"234"
            assert await store.get_range("a", 0, 10) == b"0123456789"
            assert await store.get_range("a", 8, 20) == b"89"
            assert await store.get_range("a", 4, 4) == b""
            assert await store.get_range("a", 10, 12) == b""
            assert await store.get_range("a", 30, 40) == b""
            with pytest.raises(ValueError, match="no range"):
                await store.get_range("a", 5, 4)
            with pytest.raises(ValueError, match="no range"):
                await store.get_range("a", -1, 4)

    async def test_an_absent_object_is_not_found(self) -> None:
        async with self.opened() as store:
            await store.put("here/a", b"1")
            for key in ("nope", "here", "here/b", "here/a/b"):
                with pytest.raises(ObjectNotFound) as caught:
                    await store.get(key)
                assert caught.value.key == key
                with pytest.raises(ObjectNotFound):
                    await store.get_range(key, 0, 1)
                with pytest.raises(ObjectNotFound):
                    await store.get_range(key, 1, 1)
                with pytest.raises(ObjectNotFound):
                    await store.head(key)

    async def test_head_tells_size_and_time(self) -> None:
        async with self.opened() as store:
            before_ms = time.time() * 1000
            await store.put("a/b", b"12345")
            meta = await store.head("a/b")
            assert (meta.key, meta.size_bytes) == ("a/b", 5)
            assert before_ms - 5000 < meta.modified_ms < time.time() * 1000 + 5000

    async def test_list_yields_exactly_the_prefix_in_key_order(self) -> None:
        async with self.opened() as store:
            keys = ["a-b/x", "a/b/1", "a/b/2", "a/bc", "a/c", "a0", "a.log", "b/a", "A/z"]
            for key in keys:
                await store.put(key, key.encode())

            async def listed(prefix: str) -> list[str]:
                return [meta.key async for meta in store.list(prefix)]

            assert await listed("") == sorted(keys)
            assert await listed("a") == sorted(k for k in keys if k.startswith("a"))
            assert await listed("a/") == ["a/b/1", "a/b/2", "a/bc", "a/c"]
            assert await listed("a/b") == ["a/b/1", "a/b/2", "a/bc"]
            assert await listed("a/b/") == ["a/b/1", "a/b/2"]
            assert await listed("a/b/2") == ["a/b/2"]
            assert await listed("a/b/2/") == []
            assert await listed("nope/") == []
            sizes = {meta.key: meta.size_bytes async for meta in store.list("a/")}
            assert sizes == {k: len(k) for k in keys if k.startswith("a/")}

    async def test_a_listing_goes_on_after_any_key(self) -> None:
        keys = ["a-b/x", "a.log", "a/b/1", "a/b/2", "a/bc", "a0", "b/a"]

        async with self.opened() as store:
            for key in keys:
                await store.put(key, b"1")
            for start_after in ("a/b/1", "", "a/b", "a/b/1x", "b/a"):
                for prefix in ("", "a/", "a/b"):
                    found = [m.key async for m in store.list(prefix, start_after=start_after)]
                    wanted = [k for k in keys if k.startswith(prefix) and k > start_after]
                    assert found == wanted, (prefix, start_after)

    async def test_foreign_objects_are_listed_and_hinder_nobody(self) -> None:
        ours = ["t/0/a.log", "t/0/z.log", "u/b"]

        async with self.opened() as store:
            for key in ours:
                await store.put(key, b"1")
            for key in self.foreign_keys:
                await asyncio.to_thread(self.put_foreign, key)
            everything = sorted([*ours, *self.foreign_keys])
            found = [meta.key async for meta in store.list("")]
            assert found == everything
            for start_after in self.foreign_starts:
                found = [meta.key async for meta in store.list("t/", start_after=start_after)]
                wanted = [k for k in everything if k.startswith("t/") and k > start_after]
                assert found == wanted
            for key in self.foreign_keys:
                with pytest.raises(InvalidObjectKey):
                    await store.delete([key])
            await store.delete(ours)
            assert [meta.key async for meta in store.list("")] == sorted(self.foreign_keys)

    async def test_deleting_twice_is_harmless(self) -> None:
        async with self.opened() as store:
            await store.put("a/b/c", b"1")
            await store.put("a/d", b"2")
            await store.delete([])
            await store.delete(["a/b/c", "a/never", "x/y"])
            await store.delete(["a/b/c"])
            with pytest.raises(ObjectNotFound):
                await store.get("a/b/c")
            assert [meta.key async for meta in store.list("")] == ["a/d"]
            await store.put("a/b/c", b"again")
            assert await store.get("a/b/c") == b"again"

    async def test_puts_and_deletes_beside_each_other_lose_nothing(self) -> None:
        """A delete that empties a folder must not take a concurrent put with it."""
        async with self.opened() as store:

            async def cycle(number: int) -> None:
                for round_ in range(10):
                    key = f"shared/deep/{number}"
                    await store.put(key, b"%d" % round_)
                    assert await store.get(key) == b"%d" % round_
                    await store.delete([key])

            await asyncio.gather(*map(cycle, range(8)))
            assert [meta.key async for meta in store.list("")] == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_a_bad_key_is_refused_everywhere(self, key: str, tmp_path: Path) -> None:
        async with self.opened() as store:
            path = tmp_path / "file"
            path.write_bytes(b"x")
            calls: list[Awaitable[object]] = [
                store.put(key, b""),
                store.put_file(key, path),
                store.replace(key, b""),
                store.get(key),
                store.get_range(key, 0, 1),
                store.head(key),
                store.delete(["good", key]),
            ]
            for call in calls:
                with pytest.raises(InvalidObjectKey) as caught:
                    await call
                assert caught.value.key == key

    async def test_a_listing_never_leaves_the_store(self) -> None:
        async with self.opened() as store:
            await store.put("a", b"1")
            for prefix in ("../", "a/../../", "/", "//", "a//", "./", ".staging", ".staging/"):
                assert [meta.key async for meta in store.list(prefix)] == []
