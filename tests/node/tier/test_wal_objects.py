"""Building, keeping and putting objects of chains, in one process and in the worker's."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ObjectName,
    Snapshot,
    WalSlice,
    build_seal,
)
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalHeader
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.rows import EpochRow
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, TierUnavailable
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin
from tidelog_core.objects.folder import THREAD_COUNT, FolderObjectStore
from tidelog_core.objects.one_attempt import put_once
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.tier import client as tier_client
from tidelog_node.tier import wal_memory, wal_writing
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import (
    ProtocolError,
    error_from_fields,
    error_to_fields,
    request_from_fields,
    request_to_fields,
)
from tidelog_node.tier.wal_memory import CHUNK_BYTES, FreeChunks
from tidelog_node.tier.wal_messages import (
    FileRange,
    SliceFiles,
    WalBuildFailed,
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalFull,
    WalIndexRequest,
    WalNotBuilt,
    WalPutRequest,
    WalRequest,
    WalStoreRequest,
)
from tidelog_node.tier.wal_objects import WalObjects
from tidelog_node.tier.wal_writing import build_object, write_object
from tidelog_node.tier.worker_command import WorkerCommand
from tidelog_node.tier.worker_store import WorkerAway

from tests.support.batches import batch
from tests.support.data_objects import build_data_object
from tests.support.log_building import open_log
from tests.support.tier_node import CONFIG, READY_TIMEOUT_S
from tests.support.wal_objects import CHAIN, CLUSTER, HEIR, TOPIC_ID, foreign_slice

EPOCHS = (EpochRow(TOPIC_ID.bytes, 0, 0, 0, HEIR.chain_id.bytes, HEIR.broker_id, 0, 41),)


def log_of(directory: Path, batch_count: int = 12, **settings: Any) -> LocalLog:
    log = open_log(directory, **settings)
    for number in range(batch_count):
        log.append_as_leader(batch(1 + number % 3), leader_epoch=0)
    return log


def files_of(log: LocalLog, partition: int, base_offset: int, end_offset: int) -> SliceFiles:
    ranges = [
        FileRange(str(p), start, end) for p, start, end in log.file_ranges(base_offset, end_offset)
    ]
    return SliceFiles(TOPIC_ID, partition, 0, base_offset, end_offset, tuple(ranges))


def bytes_of(one: SliceFiles) -> bytes:
    return b"".join(Path(path).read_bytes()[start:end] for path, start, end in one.ranges)


def marker() -> bytes:
    ended = EndTransactionMarker(ControlType.COMMIT, 5)
    return build_end_transaction_marker(ended, producer_id=3, producer_epoch=0, timestamp_ms=9)


def place(sequence: int = 0) -> ObjectName:
    return ObjectName(CLUSTER, CHAIN, sequence, 0, 0, 1_700_000_000_000)


def expected(request: WalBuildRequest) -> BuiltObject:
    """Build it without files."""
    slices = [WalSlice(one.topic_id, one.partition, 0, bytes_of(one)) for one in request.slices]
    return build_data_object(request.name, slices, epochs=request.epochs)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = log_of(tmp_path / "log", segment_bytes=500)
    yield log
    log.close()


@pytest.fixture
def store(tmp_path: Path) -> FolderObjectStore:
    return FolderObjectStore(tmp_path / "objects")


@pytest.fixture
async def objects(store: FolderObjectStore) -> AsyncIterator[WalObjects]:
    executor = ThreadPoolExecutor(2)
    yield WalObjects(store, built_bytes_max=8_000, executor=executor)
    executor.shutdown()


def request_of(log: LocalLog, sequence: int = 0, *, end_offset: int = 24) -> WalBuildRequest:
    slices = (files_of(log, 0, 0, end_offset), files_of(log, 1, 3, 12))
    return WalBuildRequest(place(sequence), slices, EPOCHS)


async def put(objects: WalObjects, sequence: int = 0) -> PutOutcome:
    answer = await objects.answer(WalPutRequest(CLUSTER, CHAIN, sequence, 20.0))
    return PutOutcome(answer["outcome"])


def test_requests_and_errors_come_back_as_they_were(log: LocalLog) -> None:
    given = foreign_slice()
    given = given._replace(batches=tuple(given.batches))
    for request in (
        request_of(log),
        WalBuildRequest(place(), ()),
        WalBuildRequest(place(), (), references=(given, given._replace(sequence=3))),
        WalBuildPutRequest(request_of(log), 3.5),
        WalPutRequest(CLUSTER, CHAIN, 5, 1.5),
        WalDropRequest(CHAIN, 7),
        WalStoreRequest(request_of(log), 2.5),
        WalIndexRequest(CLUSTER, CHAIN, 9, 3, 1_700_000_000_000),
        WalIndexRequest(CLUSTER, CHAIN, 9, 3, 0, (Snapshot(UUID(int=8), 2, 70, b"\x00\xff", 5),)),
    ):
        assert request_from_fields(request_to_fields(request)) == request
    for error in (WalBuildFailed("a"), WalNotBuilt("b"), WalFull("c")):
        found = error_from_fields(error_to_fields(error))
        assert (type(found), str(found)) == (type(error), str(error))
    broken = request_to_fields(request_of(log))
    broken["slices"][0].pop()
    with pytest.raises(ProtocolError):
        request_from_fields(broken)


async def test_an_object_has_the_bytes_of_the_files_whatever_segments_they_are_in(
    log: LocalLog, objects: WalObjects, store: FolderObjectStore
) -> None:
    request = request_of(log)
    assert max(len(one.ranges) for one in request.slices) > 1
    built = expected(request)
    answer = await objects.answer(request)
    assert answer == {"header": built.header.pack().hex()}
    assert await put(objects) is PutOutcome.STORED
    (key,) = [meta.key async for meta in store.list("")]
    assert await store.get(key) == built.data
    assert len(parse_object(built.data, key=key).slices) == 2
    assert await put(objects) is PutOutcome.TAKEN  # ours, but the store cannot say so


async def test_one_request_builds_an_object_and_puts_it_and_tells_its_header_in_between(
    log: LocalLog, objects: WalObjects, store: FolderObjectStore, tmp_path: Path
) -> None:
    request = request_of(log)
    built = expected(request)
    key = wal_key(CLUSTER, CHAIN, 0)
    events: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> None:
        assert not (tmp_path / "objects" / key).exists()
        events.append(event)

    answer = await objects.answer(WalBuildPutRequest(request, 20.0), on_event)
    assert events == [{"header": built.header.pack().hex()}]
    assert answer == {"outcome": "stored"}
    assert await store.get(key) == built.data
    assert await put(objects) is PutOutcome.TAKEN  # It is kept, for another try.
    again = await objects.answer(WalBuildPutRequest(request, 20.0), events.append)
    assert (again, events[1]) == ({"outcome": "taken"}, events[0])
    await objects.answer(WalDropRequest(CHAIN, 1))
    assert objects.built_bytes == 0
    wrong = request.slices[0]._replace(base_offset=1)
    with pytest.raises(WalBuildFailed, match="instead of"):
        await objects.answer(
            WalBuildPutRequest(WalBuildRequest(place(1), (wrong,)), 20.0), events.append
        )
    assert len(events) == 2


async def test_an_object_is_built_in_its_place_and_nothing_is_kept(
    log: LocalLog, objects: WalObjects, store: FolderObjectStore
) -> None:
    request = request_of(log)
    built = expected(request)
    header = built.header.pack().hex()
    answer = await objects.answer(WalStoreRequest(request, 20.0))
    assert answer == {"header": header, "outcome": "stored"}
    (key,) = [meta.key async for meta in store.list("")]
    assert await store.get(key) == built.data
    again = await objects.answer(WalStoreRequest(request, 20.0))
    assert again == {"header": header, "outcome": "taken"}
    assert objects.built_bytes == 0
    one = request.slices[0]
    wrong = WalBuildRequest(place(1), (one._replace(base_offset=one.base_offset + 1),))
    with pytest.raises(WalBuildFailed, match="instead of"):
        await objects.answer(WalStoreRequest(wrong, 20.0))
    held = threading.Event()
    for _ in range(THREAD_COUNT):
        store._executor.submit(held.wait)  # The disk has stopped.
    try:
        with pytest.raises(StoreUnavailable, match="not written yet"):
            await objects.answer(WalStoreRequest(request_of(log, 2), 0.0))
    finally:
        held.set()


@pytest.mark.parametrize("chunk_bytes", [100, 133, 250, 10_000])
def test_an_object_has_the_same_bytes_whatever_is_read_at_once(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    log.append_as_leader(bytearray(marker()), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    request = request_of(log, end_offset=25)
    monkeypatch.setattr(wal_writing, "CHUNK_BYTES", chunk_bytes)
    built, data = build_object(request, FreeChunks())
    assert BuiltObject(built.header, bytes(data)) == expected(request)
    assert len(data) == len(bytes(data))
    file = io.BytesIO()
    assert write_object(request, file) == built
    assert file.getvalue() == bytes(data)


@pytest.mark.parametrize("chunk_bytes", [120, 250, 1_000])
def test_an_object_has_the_same_bytes_whatever_its_memory_is_divided_into(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    request, free = request_of(log), FreeChunks()
    monkeypatch.setattr(wal_memory, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(wal_memory, "SPACE_BYTES_MIN", 110)
    for _ in range(2):
        built, data = build_object(request, free)
        assert BuiltObject(built.header, bytes(data)) == expected(request)
        free.give_back(data)


async def test_an_object_is_built_once_and_kept_until_it_is_dropped(
    log: LocalLog, objects: WalObjects
) -> None:
    request = request_of(log)
    answer = await objects.answer(request)
    size_bytes = objects.built_bytes
    assert size_bytes == len(expected(request).data)
    log.directory.rename(log.directory.with_name("gone"))
    assert await objects.answer(request) == answer
    assert objects.built_bytes == size_bytes
    await objects.answer(WalDropRequest(HEIR, 99))
    await objects.answer(WalDropRequest(CHAIN, 0))
    assert objects.built_bytes == size_bytes
    await objects.answer(WalDropRequest(CHAIN, 1))
    assert objects.built_bytes == 0
    with pytest.raises(WalNotBuilt):
        await put(objects)
    with pytest.raises(WalBuildFailed, match="No such file"):
        await objects.answer(request)
    log.directory.with_name("gone").rename(log.directory)
    assert await objects.answer(request) == answer  # as after the death of a worker


async def test_the_memory_of_a_dropped_object_is_free_once_its_put_is_over(
    objects: WalObjects, tmp_path: Path
) -> None:
    with contextlib.closing(open_log(tmp_path / "large")) as log:
        for _ in range(3):
            log.append_as_leader(batch(value_size_bytes=CHUNK_BYTES - 1_000), leader_epoch=0)
        request = WalBuildRequest(place(), (files_of(log, 0, 0, 3),))
        put = await objects.answer(WalBuildPutRequest(request, 60.0))
        assert put["outcome"] == "stored"
        assert len(objects.free) == 0
        await objects.answer(WalDropRequest(CHAIN, 1))
        assert len(objects.free) == 3
        await objects.answer(replace(request, name=place(1)))
        assert len(objects.free) == 0


async def test_a_build_forgets_the_objects_that_its_name_says_are_committed(
    log: LocalLog, objects: WalObjects
) -> None:
    await objects.answer(request_of(log, 0))
    await objects.answer(request_of(log, 1))
    both_bytes = objects.built_bytes
    later = request_of(log, 2)
    await objects.answer(replace(later, name=later.name._replace(committed_end=1)))
    assert objects.built_bytes == both_bytes
    with pytest.raises(WalNotBuilt):
        await put(objects, 0)
    assert await put(objects, 1) is PutOutcome.STORED
    # What others have committed in their chains does not count.
    elsewhere = request_of(log, 3)
    name = elsewhere.name._replace(chain=HEIR, committed_end=3)
    await objects.answer(replace(elsewhere, name=name))
    assert await put(objects, 2) is PutOutcome.STORED


@pytest.mark.parametrize("is_put", [False, True])
async def test_an_object_that_is_dropped_while_it_is_built_is_neither_kept_nor_put(
    log: LocalLog, store: FolderObjectStore, is_put: bool
) -> None:
    """The chain has ended meanwhile: nobody would drop the object again."""
    executor, held = ThreadPoolExecutor(1), threading.Event()
    objects = WalObjects(store, built_bytes_max=8_000, executor=executor)
    requests: list[WalRequest] = [request_of(log, n) for n in range(3)]
    if is_put:
        requests = [WalBuildPutRequest(request_of(log, n), 20.0) for n in range(3)]
    try:
        executor.submit(held.wait)
        builds = [asyncio.create_task(objects.answer(one)) for one in requests]
        await asyncio.sleep(0)  # The first one is with the thread, the others wait for it.
        await objects.answer(WalDropRequest(CHAIN, 2))
        held.set()
        found = await asyncio.gather(*builds, return_exceptions=True)
    finally:
        held.set()
        executor.shutdown()
    assert [type(one) for one in found] == [WalNotBuilt, WalNotBuilt, dict]
    assert objects.built_bytes == len(expected(request_of(log, 2)).data)
    keys = [meta.key async for meta in store.list("")]
    assert keys == ([wal_key(CLUSTER, CHAIN, 2)] if is_put else [])


def test_files_that_have_something_else_are_refused(log: LocalLog, tmp_path: Path) -> None:
    request = request_of(log)
    one = request.slices[0]
    path, start, end = one.ranges[-1]
    shorter = one._replace(ranges=(*one.ranges[:-1], FileRange(path, start, end + 1)))
    cut = one._replace(ranges=(*one.ranges[:-1], FileRange(path, start, end - 1)))
    moved = one._replace(base_offset=one.base_offset + 1)
    missing = one._replace(ranges=one.ranges[:-1])
    damaged = tmp_path / "zeros"
    damaged.write_bytes(bytes(200))
    zeros = one._replace(ranges=(FileRange(str(damaged), 0, 200),))
    nothing = one._replace(ranges=())
    for wrong, problem in (
        (shorter, "ends at"),
        (cut, "cannot be built"),
        (moved, "instead of"),
        (missing, "instead of"),
        (zeros, "cannot be built"),
        (nothing, "no batch"),
    ):
        with pytest.raises(WalBuildFailed, match=problem):
            build_object(WalBuildRequest(request.name, (wrong,)), FreeChunks())


async def test_more_objects_than_may_be_kept_are_refused(
    log: LocalLog, objects: WalObjects
) -> None:
    sequence = 0
    with contextlib.suppress(WalFull):
        for sequence in range(10):
            await objects.answer(request_of(log, sequence))
    assert 1 < sequence < 9
    with pytest.raises(WalFull, match="at most 8000"):
        await objects.answer(request_of(log, sequence))
    assert objects.built_bytes <= 8_000 + len(expected(request_of(log)).data)
    await objects.answer(WalDropRequest(CHAIN, sequence))
    large = log_of(log.directory.with_name("large"), 200)
    one = files_of(large, 0, 0, large.log_end_offset)
    await objects.answer(WalBuildRequest(place(), (one,)))  # alone, it may be of any size
    assert objects.built_bytes > 8_000
    large.close()


async def test_requests_at_once_keep_to_the_limit_and_build_an_object_once(
    log: LocalLog, objects: WalObjects
) -> None:
    requests = [request_of(log, number // 3) for number in range(60)]
    answers = await asyncio.gather(
        *(objects.answer(one) for one in requests), return_exceptions=True
    )
    kept = [one for one in answers if isinstance(one, dict)]
    assert all(isinstance(one, WalFull) for one in answers if not isinstance(one, dict))
    assert len(kept) == 3 * len({one["header"] for one in kept})
    assert objects.built_bytes <= 8_000 + len(expected(requests[0]).data)


# -- the process --


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TierClient]:
    client = TierClient(
        WorkerCommand(
            socket=tmp_path / "wal.sock",
            objects=f"file://{tmp_path}/objects",
            cache_dir=tmp_path / "cache",
            node_config=CONFIG,
            niceness=0,
            wal_bytes=1 << 20,
        )
    )
    client.start()
    yield client
    await client.close()


@pytest.mark.slow
async def test_a_worker_that_was_killed_builds_the_same_object_again(
    log: LocalLog, client: TierClient, tmp_path: Path
) -> None:
    wal = WalClient(client, CLUSTER, CHAIN)
    request = request_of(log)

    header = await wal.build(request)
    assert client.worker_pid is not None
    assert os.getpriority(os.PRIO_PROCESS, client.worker_pid) == os.getpriority(os.PRIO_PROCESS, 0)
    assert (await client.status())["wal_built_bytes"] > 0
    os.kill(client.worker_pid, signal.SIGKILL)
    while client.is_connected:
        with contextlib.suppress(TierUnavailable):
            await client.status()
    await client.wait_ready(READY_TIMEOUT_S)
    with pytest.raises(WalNotBuilt):
        await wal.put(0, timeout_s=60)
    # The log has gone on, and its segments have been rolled since.
    log.append_as_leader(batch(3), leader_epoch=0)
    log.roll()
    assert await wal.build(request_of(log)) == header
    assert await wal.put(0, timeout_s=60) is PutOutcome.STORED
    assert await wal.header(0) == header
    assert await wal.header(1) is None
    (found,) = (tmp_path / "objects").rglob("*.wal")
    assert found.read_bytes() == expected(request).data
    await wal.drop(1)
    assert (await client.status())["wal_built_bytes"] == 0


async def test_a_node_hears_of_the_header_of_an_object_before_its_put_is_answered(
    log: LocalLog, client: TierClient
) -> None:
    wal, request = WalClient(client, CLUSTER, CHAIN), request_of(log)
    headers: list[WalHeader] = []
    outcome = await wal.build_and_put(request, timeout_s=60, on_built=headers.append)
    assert (outcome, headers) == (PutOutcome.STORED, [expected(request).header])

    def fail(header: WalHeader) -> None:
        raise LookupError(header.sequence)

    with pytest.raises(LookupError, match="0"):
        await wal.build_and_put(request, timeout_s=60, on_built=fail)
    assert await wal.put(0, timeout_s=60) is PutOutcome.TAKEN  # The connection goes on.
    wrong = WalBuildRequest(place(1), (request.slices[0]._replace(base_offset=1),))
    with pytest.raises(WalBuildFailed, match="instead of"):
        await wal.build_and_put(wrong, timeout_s=60, on_built=headers.append)
    assert len(headers) == 1


async def test_a_request_without_a_worker_says_that_it_was_not_sent(client: TierClient) -> None:
    await client.wait_ready(READY_TIMEOUT_S)
    await client.close()
    with pytest.raises(WorkerAway):
        await WalClient(client, CLUSTER, CHAIN).drop(1)


async def test_a_chain_is_served_while_as_many_reads_wait_as_may(
    log: LocalLog, client: TierClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_client, "REQUESTS_MAX", 0)
    with pytest.raises(TierUnavailable, match="0 requests wait"):
        await client.get("x")
    wal, request = WalClient(client, CLUSTER, CHAIN), request_of(log)
    await wal.build(request)
    assert await wal.put(0, timeout_s=60) is PutOutcome.STORED
    await wal.drop(1)


async def test_seals_are_put_through_the_worker_with_exact_outcomes(client: TierClient) -> None:
    chains = ChainStore(client, CLUSTER)
    chain = CHAIN._replace(chain_id=uuid4())
    seal = build_seal(ObjectName(CLUSTER, chain, 0, 0, 0, 0), HEIR).data
    assert await chains.put(chain, 0, seal) is PutOutcome.STORED
    assert await chains.put(chain, 0, seal) is PutOutcome.TAKEN
    assert [one.sequence for one in await chains.list(chain)] == [0]


async def test_a_folder_that_takes_too_long_leaves_the_outcome_unknown(
    store: FolderObjectStore,
) -> None:
    with pytest.raises(OutcomeUnknown):
        await put_once(store, "a/b", b"c", timeout_s=0)


def test_foreign_slices_and_references_are_built_from_files(log: LocalLog, tmp_path: Path) -> None:
    data = foreign_batches(batch(2))
    path = tmp_path / "slices"
    path.write_bytes(b"other" + data)
    foreign = SliceFiles(
        TOPIC_ID, 4, -1, -1, 2, (FileRange(str(path), 5, 5 + len(data)),), is_foreign=True
    )
    given = foreign_slice()
    request = WalBuildRequest(place(), (foreign, files_of(log, 0, 0, 24)), references=(given,))
    _, built = build_object(request, FreeChunks())
    footer = parse_object(bytes(built), key="")
    first, own = footer.slices
    assert first.is_foreign
    assert not own.is_foreign
    assert (first.partition, first.position, first.end_offset) == (4, HEADER_SIZE, 2)
    assert bytes(built)[first.position : first.position + first.size_bytes] == data
    (reference,) = footer.references
    assert (reference.base_offset, reference.crc32c) == (given.base_offset, given.row.crc32c)
    with pytest.raises(WalBuildFailed, match="instead of"):
        build_object(WalBuildRequest(place(), (foreign._replace(end_offset=3),)), FreeChunks())
