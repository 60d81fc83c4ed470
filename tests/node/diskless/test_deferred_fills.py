"""An heir leads before it has read a record of a long tail, and has all of them in the end."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import FILLING_DIRECTORY, UNFILLED_FILE
from tidelog_core.log.unfilled_range import UnfilledMark
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.recovery import deferred_fills, log_refill, tail_fills
from tidelog_node.diskless.recovery.chain_slices import ReadChains, list_chains
from tidelog_node.diskless.recovery.deferred_fills import DeferredFills, may_defer_fill
from tidelog_node.diskless.recovery.log_refill import LogRefill, RefillLimits
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.tail_fills import TailFills
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.led_partition import known_tiered_end

from tests.node.diskless.chained_log import CLUSTER
from tests.node.diskless.shared_chain import SharedChain
from tests.node.diskless.takeover_node import NoIndexes, TakeoverNode, create, takeover_node
from tests.node.diskless.test_log_refill import assert_same
from tests.support.batches import batch_of
from tests.support.log_building import content_of
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

NOTHING_FOUND = ReadChains({}, {}, {}, {}, {}, {})
LONG, SHORT = 0, 1
OBJECTS, VALUE_BYTES = 6, 2_000


class HeldStore(MemoryObjectStore):
    """A store that answers no read of records while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.waiting_count = 0
        self.footer_count = 0
        self.read_counts = Counter[str]()  # of records, by object

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        if start and len(data) > VALUE_BYTES // 2:
            self.read_counts[key] += 1
        if start and len(data) > VALUE_BYTES // 2:  # Footers are read from the start on.
            self.waiting_count += 1
            await self.may_answer.wait()
        elif len(data) > VALUE_BYTES:
            self.footer_count += 1
        return data


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_fills, "DEFERRED_BYTES_MIN", VALUE_BYTES)
    monkeypatch.setattr(tail_fills, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)


def value(number: int) -> bytearray:
    return bytearray(batch_of(b"%d" % (number % 10) * VALUE_BYTES, producer=(7, 0, number)))


async def fill(it: TakeoverNode) -> bytes:
    """Write to both partitions; return the records of the long tail."""
    await create(it, partitions=2)
    for number in (LONG, SHORT):
        await it.until_led(number)
    for number in range(OBJECTS):
        it.replica(LONG).append(value(number))
        assert await it.chain.commit(it.replica(LONG)) is PutOutcome.STORED
    it.replica(SHORT).append(bytearray(batch_of(b"short")))
    assert await it.chain.commit(it.replica(SHORT)) is PutOutcome.STORED
    return content_of(it.replica(LONG).log)


def offsets_of(content: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(content)]


async def until_filled(it: TakeoverNode) -> LocalLog:
    log = it.replica(LONG).log
    await it.until(lambda: log.unfilled is None)
    return log


async def test_an_heir_acknowledges_before_it_has_read_a_record(tmp_path: Path) -> None:
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        content = await fill(it)
    shutil.rmtree(tmp_path / "data")
    objects.may_answer.clear()
    objects.footer_count = 0
    async with takeover_node(tmp_path, objects) as it:
        long = await it.until_led(LONG)
        log = long.log
        assert log.unfilled == (0, OBJECTS)
        assert objects.footer_count == OBJECTS  # They say where the slices are, and their batches.
        # Retries of what was acknowledged are known, and what comes next is taken.
        assert long.append(value(OBJECTS - 1)).is_duplicate
        assert long.append(value(OBJECTS)).base_offset == OBJECTS
        assert await it.chain.commit(long) is PutOutcome.STORED
        assert log.high_watermark == OBJECTS + 1
        # Consumers at the end read on; those behind wait.
        epoch = {"leader_epoch": long.leader_epoch}
        (base_offset,) = offsets_of(bytes(it.node.read(OBJECTS, **epoch).records))
        assert base_offset == OBJECTS
        waiting = it.node.read(2, max_wait_ms=60_000, **epoch)
        await it.until(lambda: objects.waiting_count > 0)
        assert not waiting.done()
        assert known_tiered_end(log) == 0
        traffic = it.node.context.counters.chain
        assert traffic.unfilled_count == 1
        assert traffic.unfilled_since_s > 0
        objects.may_answer.set()
        answer = await waiting
        assert offsets_of(bytes(answer.records))[0] == 2
        await until_filled(it)
        assert content_of(log)[: len(content)] == content
        assert offsets_of(content_of(log)) == [*range(OBJECTS + 1)]
        assert log.leader_epochs[0][1] == 0
        await it.until(lambda: traffic.unfilled_count == 0)
        await it.until_led(SHORT)


async def test_the_loop_waits_for_no_flush_of_the_disk_from_the_election_to_the_filled_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves producers of other partitions meanwhile, and a hundred may come at once."""
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        await fill(it)
    shutil.rmtree(tmp_path / "data")
    threads, fsync = list[int](), os.fsync

    def watch(descriptor: int) -> None:
        if "t-0" in Path(f"/proc/self/fd/{descriptor}").readlink().parts:
            threads.append(threading.get_ident())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(LONG)
        await until_filled(it)
        monkeypatch.undo()
    assert len(threads) >= 8
    assert threading.get_ident() not in threads


async def test_an_heir_that_is_killed_while_it_fills_leads_and_fills_again(
    tmp_path: Path,
) -> None:
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        content = await fill(it)
    shutil.rmtree(tmp_path / "data")
    objects.may_answer.clear()
    for turn in range(2):
        async with takeover_node(tmp_path, objects) as it:
            long = await it.until_led(LONG)
            assert long.log.unfilled == (0, OBJECTS + turn)
            long.append(value(OBJECTS + turn))
            assert await it.chain.commit(long) is PutOutcome.STORED
            killed = shutil.copytree(tmp_path / "data", tmp_path / f"killed-{turn}")
        shutil.rmtree(tmp_path / "data")
        killed.rename(tmp_path / "data")
    objects.may_answer.set()
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(LONG)
        log = await until_filled(it)
        assert content_of(log)[: len(content)] == content
        assert offsets_of(content_of(log)) == [*range(OBJECTS + 2)]
        assert it.replica(LONG).append(value(OBJECTS + 1)).is_duplicate


async def test_a_damaged_record_holds_up_its_readers_and_no_producer(tmp_path: Path) -> None:
    """What comes before it is read, once, and consumers get that."""
    objects, damaged = HeldStore(), 3
    async with takeover_node(tmp_path, objects) as it:
        content = await fill(it)
        keys = [wal_key(it.cluster_id, it.chain.name, number) for number in range(damaged + 1)]
    shutil.rmtree(tmp_path / "data")
    whole = await objects.get(keys[damaged])
    at = whole.index(b"%d" % damaged * 100)
    await objects.replace(keys[damaged], whole[:at] + b"x" + whole[at + 1 :])
    objects.read_counts.clear()
    async with takeover_node(tmp_path, objects) as it:
        long = await it.until_led(LONG)
        await it.until(lambda: objects.read_counts[keys[damaged]] > 2)  # It tries again.
        assert [objects.read_counts[key] for key in keys[:damaged]] == [1] * damaged
        assert long.log.unfilled == (0, OBJECTS)
        epoch = {"leader_epoch": long.leader_epoch}
        for offset in range(damaged):
            answer = it.node.read(offset, **epoch)
            assert offsets_of(bytes(answer.records))[0] == offset
        waiting = it.node.read(damaged, max_wait_ms=60_000, **epoch)
        long.append(value(OBJECTS))
        assert await it.chain.commit(long) is PutOutcome.STORED
        assert not waiting.done()
        await objects.replace(keys[damaged], whole)
        answer = await waiting
        assert offsets_of(bytes(answer.records))[0] == damaged
        log = await until_filled(it)
        assert content_of(log)[: len(content)] == content
        assert [objects.read_counts[key] for key in keys[:damaged]] == [1] * damaged


async def test_a_log_that_has_a_part_of_its_tail_keeps_it(tmp_path: Path) -> None:
    """It is compared and refilled before it leads, as ever: its bytes may be the last ones."""
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        content = await fill(it)
    async with takeover_node(tmp_path, objects) as it:
        long = await it.until_led(LONG)
        assert long.log.unfilled is None
        assert content_of(long.log) == content
        assert objects.waiting_count == 0


async def test_a_partition_that_is_led_again_before_its_log_is_filled_has_everything(
    tmp_path: Path,
) -> None:
    """Its chain was sealed: it leads again in another one, with another fill."""
    objects = HeldStore()
    async with takeover_node(tmp_path, objects) as it:
        content = await fill(it)
    shutil.rmtree(tmp_path / "data")
    objects.may_answer.clear()
    async with takeover_node(tmp_path, objects) as it:
        long = await it.until_led(LONG)
        await it.until(lambda: objects.waiting_count > 0)
        first, it.chain.is_deposed = it.chain, True
        it.node.replicas.end_lead(long)
        await it.until(lambda: long.is_leader and it.chain is not first)
        assert long.log.unfilled == (0, OBJECTS)
        objects.may_answer.set()
        log = await until_filled(it)
        assert content_of(log) == content


# -- from footers alone, in any schedule --


class FilledLogs:
    """Logs that begin at the ends of their tails, and are filled."""

    def __init__(self, shared: SharedChain, view: ClusterView) -> None:
        self.shared = shared
        self.context = node_context(MemoryMetadataStore(), view)
        self.refill = LogRefill(self.context, shared.store.get_range)
        self.history = TierHistory(
            store=self.context.store,
            indexes=NoIndexes(),  # type: ignore[arg-type]
            view=view,
        )
        self.fills = TailFills(self.refill, self.history)
        self.chains = ChainStore(shared.store, CLUSTER)

    async def begin(
        self, replicas: dict[PartitionName, Replica], tails: dict[PartitionName, LogTail]
    ) -> dict[PartitionName, deferred_fills.Fill]:
        names = sorted({entry.chain for entry in self.shared.chains})
        listings = await list_chains(self.chains, names)
        deferred = DeferredFills(self.chains, self.context.executor)
        return await deferred.begin(replicas, tails, listings, NOTHING_FOUND)


@pytest.fixture
async def view() -> ClusterView:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    return view


@pytest.fixture(params=range(6))
async def logs(
    request: pytest.FixtureRequest, tmp_path: Path, view: ClusterView
) -> AsyncIterator[FilledLogs]:
    shared = SharedChain(tmp_path / "leader", MemoryObjectStore(), 4)
    await shared.fill(objects=8, seed=request.param)
    logs = FilledLogs(shared, view)
    yield logs
    await logs.fills.close()
    shared.close()


async def test_what_footers_say_is_what_the_leaders_log_has(
    logs: FilledLogs, tmp_path: Path
) -> None:
    """Producers, transactions, leader epochs; and after the fill every record."""
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    assert all(may_defer_fill(tail, 0) for tail in tails.values())
    fills = await logs.begin(replicas, tails)
    assert fills.keys() == replicas.keys()
    for name, replica in replicas.items():
        log, leader = replica.log, logs.shared.logs[name.partition]
        assert log.log_end_offset == log.high_watermark == leader.log_end_offset
        assert log.leader_epochs == leader.leader_epochs
        assert log.last_stable_offset == leader.last_stable_offset
        assert content_of(log) == b""
    logs.fills.add(fills)
    await until_all_filled(replicas)
    for name, replica in replicas.items():
        assert_same(replica.log, logs.shared.logs[name.partition])
        replica.log.close()


async def test_without_one_of_its_footers_a_log_is_left_as_it_is(
    logs: FilledLogs, tmp_path: Path
) -> None:
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    broken = logs.shared.names[1]
    one = tails[broken].slices[-1]
    sharing = {
        name
        for name, tail in tails.items()
        if any((s.chain, s.sequence) == (one.chain, one.sequence) for s in tail.slices)
    }
    await logs.shared.store.delete([wal_key(CLUSTER, one.chain, one.sequence)])
    fills = await logs.begin(replicas, tails)
    assert fills.keys() == replicas.keys() - sharing
    for name in sharing:
        assert replicas[name].log.log_end_offset == 0
        assert replicas[name].log.unfilled is None
    for replica in replicas.values():
        replica.log.close()


async def until_all_filled(replicas: dict[PartitionName, Replica]) -> None:
    async with asyncio.timeout(60):
        while any(replica.log.unfilled for replica in replicas.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_log_that_has_begun_again_is_filled_by_its_last_fill_alone(
    logs: FilledLogs, tmp_path: Path
) -> None:
    """An item had changed, so the log was recovered again; the first recovery ended after that."""
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    first = await logs.begin(
        replicas,
        {
            name: tail._replace(slices=tail.slices[:-1], end_offset=tail.slices[-2].end_offset)
            for name, tail in tails.items()
        },
    )
    assert first.keys() == replicas.keys()
    older = {name: tail_fills.FillReplica(fill) for name, fill in first.items()}
    for replica in replicas.values():
        replica.log.truncate_fully_and_start_at(0)
    second = await logs.begin(replicas, tails)
    for name, filling in older.items():
        data = await logs.refill.read_slice(name, tails[name].slices[0])
        with pytest.raises(StorageError):  # It would write to the files of the other fill.
            filling.append_as_follower(memoryview(data))
        filling.close()
    logs.fills.add(second)
    logs.fills.add(first)
    await until_all_filled(replicas)
    for name, replica in replicas.items():
        assert_same(replica.log, logs.shared.logs[name.partition])
        replica.log.close()


async def test_nothing_is_written_to_a_log_whose_partition_has_left_the_node(
    logs: FilledLogs, tmp_path: Path
) -> None:
    """The partition may return at any time, and another thread opens the same files then."""
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    fills = await logs.begin(replicas, tails)
    filling = {name: tail_fills.FillReplica(fill) for name, fill in fills.items()}
    for name, replica in replicas.items():
        replica.drop()
        data = await logs.refill.read_slice(name, tails[name].slices[0])
        with pytest.raises(StorageError, match="ended"):
            filling[name].append_as_follower(memoryview(data))
        filling[name].close()
    logs.fills.add(fills)
    assert not any(fill.is_wanted for fill in fills.values())
    for replica in replicas.values():
        assert content_of(replica.log) == b""
        replica.log.close()


async def test_no_log_is_begun_whose_partition_has_left_the_node(
    logs: FilledLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves while a thread writes the mark of what the log lacks."""
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    (name, left), (other, stays) = list(replicas.items())[:2]
    run = UnfilledMark.run

    def run_slowly(mark: UnfilledMark) -> None:
        run(mark)
        left.is_dropped = True

    monkeypatch.setattr(UnfilledMark, "run", run_slowly)
    some = {name: left, other: stays}
    fills = await logs.begin(some, {one: tails[one] for one in some})
    assert name not in fills
    assert (left.log.log_end_offset, left.log.unfilled) == (0, None)
    assert not (left.log.directory / UNFILLED_FILE).exists()
    for replica in replicas.values():
        replica.log.close()


async def test_a_marker_that_could_not_be_removed_is_removed_without_another_fill(
    logs: FilledLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = logs.shared.heir(tmp_path / "heir")
    fills = await logs.begin(replicas, await logs.shared.tails(replicas))
    unlink, failed = Path.unlink, set[Path]()

    def fail_once(path: Path, missing_ok: bool = False) -> None:
        if path.name == UNFILLED_FILE and path not in failed:
            failed.add(path)
            raise OSError(errno.EIO, "input/output error")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", fail_once)
    logs.fills.add(fills)
    await until_all_filled(replicas)
    assert len(failed) == len(replicas)
    for name, replica in replicas.items():
        assert_same(replica.log, logs.shared.logs[name.partition])
        replica.log.close()


async def test_nothing_is_read_while_the_disk_is_full_and_nothing_twice_after_that(
    logs: FilledLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_refill, "GATHERED_BYTES_MAX", 1)
    replicas = logs.shared.heir(tmp_path / "heir")
    tails = await logs.shared.tails(replicas)
    fills = await logs.begin(replicas, tails)
    disks = [replica._disk for replica in replicas.values()]
    reads = Counter[tuple[str, int]]()

    async def read(key: str, start: int, end: int) -> bytes:
        reads[key, start] += 1
        if reads.total() == 5:
            for disk in disks:
                disk.change(is_full=True, has_failed=False)
        return await logs.shared.store.get_range(key, start, end)

    limits = RefillLimits(reads_at_once=1, bytes_ahead=1)
    filling = TailFills(LogRefill(logs.context, read, limits=limits), logs.history)
    filling.add(fills)
    await until(lambda: reads.total() >= 5)
    count = -1
    while count != reads.total():  # What is under way ends.
        count = reads.total()
        await asyncio.sleep(5 * tail_fills.RETRY_SECONDS)
    assert any(replica.log.unfilled for replica in replicas.values())
    for disk in disks:
        disk.change(is_full=False, has_failed=False)
    await until_all_filled(replicas)
    await filling.close()
    # One object at most was read when its records could not be appended.
    assert sum(times - 1 for times in reads.values()) <= len(replicas)
    for name, replica in replicas.items():
        assert_same(replica.log, logs.shared.logs[name.partition])
        replica.log.close()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_no_more_logs_have_open_files_at_once_than_may(
    logs: FilledLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_fills, "LOGS_AT_ONCE_MAX", 1)
    replicas = logs.shared.heir(tmp_path / "heir")
    fills = await logs.begin(replicas, await logs.shared.tails(replicas))
    is_reading, may_answer = asyncio.Event(), asyncio.Event()

    async def read(key: str, start: int, end: int) -> bytes:
        is_reading.set()
        await may_answer.wait()
        return await logs.shared.store.get_range(key, start, end)

    filling = TailFills(LogRefill(logs.context, read), logs.history)
    filling.add(fills)
    async with asyncio.timeout(60):
        await is_reading.wait()
    folders = [replica.log.directory / FILLING_DIRECTORY for replica in replicas.values()]
    assert [folder.exists() for folder in folders].count(True) == 1
    may_answer.set()
    await until_all_filled(replicas)
    await filling.close()
    for replica in replicas.values():
        replica.log.close()


async def test_fills_leave_the_reads_to_partitions_that_are_not_led_yet(
    logs: FilledLogs, tmp_path: Path
) -> None:
    replicas, urgent = (logs.shared.heir(tmp_path / name) for name in ("heir", "urgent"))
    tails = await logs.shared.tails(replicas)
    fills = await logs.begin(replicas, tails)
    in_flight = Counter[str]()
    most = Counter[str]()
    may_answer = {"fill": asyncio.Event(), "urgent": asyncio.Event()}

    def reader(kind: str) -> RangeReader:
        async def read(key: str, start: int, end: int) -> bytes:
            in_flight[kind] += 1
            most[kind] = max(most[kind], in_flight[kind])
            await may_answer[kind].wait()
            in_flight[kind] -= 1
            return await logs.shared.store.get_range(key, start, end)

        return read

    first = LogRefill(logs.context, reader("urgent"))
    limits = RefillLimits(reads_at_once=6, reads_behind_others=2)
    behind = LogRefill(logs.context, reader("fill"), limits=limits, behind=first)
    recovering = asyncio.create_task(first.refill(await logs.shared.tails(urgent)))
    await turns()
    assert first.is_busy
    filling = TailFills(behind, logs.history)
    filling.add(fills)
    await turns()
    assert in_flight == {"urgent": most["urgent"], "fill": 2}
    assert in_flight["urgent"] > 2
    may_answer["urgent"].set()
    assert not await recovering
    assert not first.is_busy
    may_answer["fill"].set()
    await until_all_filled(replicas)
    await filling.close()
    for replica in (*replicas.values(), *urgent.values()):
        replica.log.close()


async def test_fills_append_little_while_partitions_without_a_leader_are_recovered(
    logs: FilledLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_refill, "GATHERED_BYTES_MAX", 1)
    monkeypatch.setattr(log_refill, "PAUSE_BEHIND_SECONDS", 3_600.0)
    replicas = logs.shared.heir(tmp_path / "heir")
    fills = await logs.begin(replicas, await logs.shared.tails(replicas))
    read_count = 0

    async def read(key: str, start: int, end: int) -> bytes:
        nonlocal read_count
        read_count += 1
        return await logs.shared.store.get_range(key, start, end)

    first = LogRefill(logs.context, read)
    limits = RefillLimits(reads_at_once=1, bytes_ahead=1)
    filling = TailFills(LogRefill(logs.context, read, limits=limits, behind=first), logs.history)
    with first.urgent():
        filling.add(fills)
        await until(lambda: read_count > 0)
        await turns()
        assert read_count == 1
        assert all(replica.log.unfilled is not None for replica in replicas.values())
    await until_all_filled(replicas)
    await filling.close()
    for replica in replicas.values():
        replica.log.close()


async def turns() -> None:
    """Let the tasks do what they can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_log_that_lacks_records_is_not_taken_for_a_followers(
    logs: FilledLogs, tmp_path: Path
) -> None:
    """It ends where the leader that hands over does, and all of that is committed."""
    replicas = logs.shared.heir(tmp_path / "heir")
    await logs.begin(replicas, await logs.shared.tails(replicas))
    for replica in replicas.values():
        end_offset = replica.log.log_end_offset
        assert not leader_takeover.has_committed(replica, end_offset)
        replica.log.forget_unfilled()
        assert leader_takeover.has_committed(replica, end_offset)
        replica.log.close()
