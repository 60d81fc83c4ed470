"""Storing a segment's two objects, with stores that fail in every way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tidelog_core.errors import (
    CorruptObject,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import SegmentKeys
from tidelog_node.tier import upload
from tidelog_node.tier.protocol import UploadRequest, UploadResult
from tidelog_node.tier.upload import upload_segment

from tests.support.tier_segments import numbered_batch, write_source

KEYS = SegmentKeys(log="c/t/0/s.log", index="c/t/0/s.index")


class FlakyStore(MemoryObjectStore):
    """Fails the next writes: before writing, or after (the reply is lost)."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[type[TidelogError]] = []
        self.put_count = 0

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        self.put_count += 1
        failure = self.failures.pop(0) if self.failures else None
        if failure is StoreUnavailable:
            raise StoreUnavailable("away")
        await super().put(key, data, kms_key_id=kms_key_id)
        if failure is OutcomeUnknown:
            raise OutcomeUnknown("no reply")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "DELAY_S_MIN", 0.001)


def request(folder: Path) -> UploadRequest:
    folder.mkdir(exist_ok=True)
    source = write_source(
        folder, [numbered_batch(10 * n) for n in range(5)], base_offset=0, end_offset=50
    )
    return UploadRequest(source, KEYS, "")


async def run_upload(store: ObjectStore, wanted: UploadRequest) -> UploadResult:
    with ThreadPoolExecutor(1) as executor:
        return await upload_segment(store, wanted, executor=executor)


async def check(store: FlakyStore, wanted: UploadRequest, result: UploadResult) -> None:
    assert await store.get(KEYS.log) == wanted.source.path.read_bytes()
    data = await store.get(KEYS.index)
    assert len(data) == result.index_size_bytes
    assert IndexFile.parse(data).chained_hash == result.chained_hash


async def test_a_segment_costs_two_puts(tmp_path: Path) -> None:
    store, wanted = FlakyStore(), request(tmp_path)
    await check(store, wanted, await run_upload(store, wanted))
    assert store.put_count == 2


@pytest.mark.parametrize(
    "failures",
    [
        [StoreUnavailable],
        [OutcomeUnknown],
        [StoreUnavailable, OutcomeUnknown, StoreUnavailable, OutcomeUnknown],
        [StoreUnavailable] * 3,
    ],
)
async def test_passing_trouble_is_overcome(
    tmp_path: Path, failures: list[type[TidelogError]]
) -> None:
    store, wanted = FlakyStore(), request(tmp_path)
    store.failures = list(failures)
    await check(store, wanted, await run_upload(store, wanted))


async def test_lasting_trouble_is_raised_and_the_same_request_may_come_again(
    tmp_path: Path,
) -> None:
    store, wanted = FlakyStore(), request(tmp_path)
    store.failures = [OutcomeUnknown] + [StoreUnavailable] * 4
    with pytest.raises(StoreUnavailable):
        await run_upload(store, wanted)
    await check(store, wanted, await run_upload(store, wanted))
    # A third time finds both objects and changes nothing.
    await check(store, wanted, await run_upload(store, wanted))


async def test_an_object_of_another_size_under_our_key_is_never_taken_for_ours(
    tmp_path: Path,
) -> None:
    store, wanted = FlakyStore(), request(tmp_path)
    await store.put(KEYS.log, b"something else")
    with pytest.raises(CorruptObject):
        await run_upload(store, wanted)


async def test_an_index_that_says_something_else_than_the_metadata_would_is_not_taken(
    tmp_path: Path,
) -> None:
    """Between two tries the segment before may go, and the chain begins anew."""
    store, wanted = FlakyStore(), request(tmp_path)
    await run_upload(store, wanted)
    source = dataclasses.replace(wanted.source, previous_hash=b"\x01" * 32)
    with pytest.raises(CorruptObject, match="another index"):
        await run_upload(store, UploadRequest(source, KEYS, ""))


async def test_a_file_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    store, wanted = FlakyStore(), request(tmp_path)
    wanted.source.path.unlink()
    with pytest.raises(StorageError):
        await run_upload(store, wanted)
    assert store.put_count == 0


async def test_a_file_that_is_replaced_meanwhile_is_not_reported_as_stored(tmp_path: Path) -> None:
    wanted = request(tmp_path)

    class Replacing(FlakyStore):
        async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
            other = path.with_suffix(".other")
            other.write_bytes(path.read_bytes())
            other.replace(path)
            await super().put_file(key, path, kms_key_id=kms_key_id)

    make: Callable[[], FlakyStore] = Replacing
    with pytest.raises(StorageError, match="replaced"):
        await run_upload(make(), wanted)


class VanishingStore(FolderObjectStore):
    """A folder whose source files go before they are read, because their topic is deleted."""

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        path.unlink(missing_ok=True)
        await super().put_file(key, path, kms_key_id=kms_key_id)


async def test_a_file_that_is_gone_is_not_taken_for_a_store_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VanishingStore(tmp_path / "objects")
    with pytest.raises(StorageError, match="cannot be read"):
        await run_upload(store, request(tmp_path / "log"))
    assert caplog.messages == []
    await store.close()
