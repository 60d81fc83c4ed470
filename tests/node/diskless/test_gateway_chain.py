"""A gateway's slices in its chain, and references to them in a leader's: real files and worker."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_node.diskless.chain.chain_partition import CommittedForeign
from tidelog_node.diskless.gateway import spool
from tidelog_node.diskless.gateway.spool import FILE_BYTES_MAX, GatewaySpool
from tidelog_node.tier.wal_messages import FileRange, SliceFiles

from tests.support.batches import batch
from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER, GATEWAY, TOPIC_ID
from tests.support.wal_scene import Faults, WalScene


class Slices:
    """A gateway's slices, and where its chain has committed them."""

    def __init__(self, scene: WalScene) -> None:
        self.scene = scene
        self.spool = GatewaySpool(scene.folder / "gateway")
        self.data: dict[int, bytes] = {}
        self.ranges: dict[int, FileRange] = {}
        self.places: dict[int, tuple[int, int]] = {}
        scene.chain.foreign_committed.subscribe(self._on_committed)

    def take(self, count: int = 1) -> None:
        number = len(self.data)
        self.data[number] = bytes(foreign_batches(batch(count)))
        place = self.ranges[number] = self.spool.write(self.data[number])
        files = SliceFiles(TOPIC_ID, number % 3, -1, -1, count, (place,), is_foreign=True)
        assert self.scene.chain.note_foreign(number, files)

    def _on_committed(self, sequence: int, placed: Sequence[tuple[int, int]]) -> None:
        for number, position in placed:
            assert number not in self.places
            self.places[number] = (sequence, position)

    async def are_committed(self) -> None:
        await eventually_async(lambda: len(self.places) == len(self.data))
        for number, (sequence, position) in self.places.items():
            data = self.data[number]
            key = wal_key(CLUSTER, self.scene.name, sequence)
            found = await self.scene.store.get_range(key, position, position + len(data))
            assert found == data


@pytest.mark.parametrize("is_local", [False, True])
async def test_slices_are_where_the_chain_says_whatever_the_store_does(
    tmp_path: Path, is_local: bool
) -> None:
    scene = WalScene(tmp_path, is_local=is_local)
    (log,) = scene.lead(1)
    slices = Slices(scene)
    for step in range(60):
        scene.store.faults = Faults(refused=0.2, lost=0.2, vanished=0.1, slow_s=0.002)
        slices.take(1 + step % 3)
        if step % 4 == 0:
            log.append(2)
        if step % 20 == 7:
            scene.worker.kill(0.01)
        await eventually_async(lambda s=step: len(slices.places) >= s - 10)
    scene.store.faults = Faults()
    await slices.are_committed()
    await eventually_async(lambda: log.committed_end == log.log.log_end_offset)
    # Its own records are found without the gateway's slices, which have no offsets here.
    assert (await scene.committed_content())[log.name] == log.content
    await scene.close()


async def test_a_chain_that_has_ended_takes_no_slices(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    slices = Slices(scene)
    slices.take()
    await slices.are_committed()
    scene.chain.abandon("for the test")
    place = slices.spool.write(b"x")
    assert not scene.chain.note_foreign(
        9, SliceFiles(TOPIC_ID, 0, -1, -1, 1, (place,), is_foreign=True)
    )
    await scene.close()


@pytest.mark.parametrize("is_local", [False, True])
async def test_a_reference_is_in_line_with_appends(tmp_path: Path, is_local: bool) -> None:
    """Between two ranges of the same turn, and as the log has it."""
    scene = WalScene(tmp_path, is_local=is_local)
    (log,) = scene.lead(1)
    content = WalSlice(log.topic_id, 0, -1, bytes(foreign_batches(batch(4))), is_foreign=True)
    log.append(3)
    with log.chain.referring_to(CommittedForeign(GATEWAY, 6, 5, 112, content)):
        log.append(4)
    log.append(2)
    await eventually_async(lambda: log.committed_end == 9)
    listed = await scene_footers(scene)
    references = [row for footer in listed for row in footer.references]
    assert [(row.base_offset, row.end_offset, row.sequence) for row in references] == [(3, 7, 5)]
    assert ChainName(references[0].broker_id, GATEWAY.chain_id) == GATEWAY
    slices = [(row.base_offset, row.end_offset) for footer in listed for row in footer.slices]
    assert slices == [(0, 3), (7, 9)]
    batches = [row.base_offset for footer in listed for row in footer.batches]
    assert sorted(batches) == [0, 3, 7]
    await scene.close()


@pytest.mark.parametrize("is_local", [False, True])
async def test_a_reference_behind_a_cut_is_left_out_as_records_are(
    tmp_path: Path, is_local: bool
) -> None:
    """Another node is to lead the partition. It could not go on over the gap."""
    scene = WalScene(tmp_path, is_local=is_local)
    kept, moved = scene.lead(2)
    content = WalSlice(moved.topic_id, 1, -1, bytes(foreign_batches(batch(4))), is_foreign=True)
    for sequence in (4, 5):
        with moved.chain.referring_to(CommittedForeign(GATEWAY, 6, sequence, 112, content)):
            moved.append(4)
        moved.append(1)
    kept.append()
    scene.chain._note_all()
    scene.chain.leave(moved)
    moved.log.truncate_to(4)
    await eventually_async(lambda: kept.committed == [1] and not scene.chain.buffered_bytes)
    listed = await scene_footers(scene)
    references = [row for footer in listed for row in footer.references]
    assert [(row.base_offset, row.end_offset) for row in references] == [(0, 4)]
    assert [row.partition for footer in listed for row in footer.slices] == [0]
    await scene.close()


async def test_a_reference_to_what_is_not_committed_ends_the_chain(tmp_path: Path) -> None:
    """The rule ``may_refer``: such a reference could be void for ever."""
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    content = WalSlice(log.topic_id, 0, -1, bytes(foreign_batches(batch(4))), is_foreign=True)
    with log.chain.referring_to(CommittedForeign(GATEWAY, 5, 5, 112, content)):
        log.append(4)
    assert scene.chain.is_deposed
    await scene.close()


async def scene_footers(scene: WalScene) -> list[WalFooter]:
    objects = [
        await scene.store.get(wal_key(CLUSTER, scene.name, sequence))
        for sequence in range(scene.chain.committed_end)
    ]
    return [parse_object(data, key="") for data in objects]


def test_a_spool_removes_files_that_nobody_needs(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    (folder / "left").write_bytes(b"of an earlier process")
    slices = GatewaySpool(folder)
    half = bytes(FILE_BYTES_MAX // 2 + 1)
    places = [slices.write(half) for _ in range(3)]
    assert len({place.path for place in places}) == len(list(folder.iterdir())) == 3
    assert all(Path(one.path).stat().st_size == one.end - one.start for one in places)
    slices.release(places[0])
    slices.release(places[2])  # The last one is written to.
    assert [str(path) for path in sorted(folder.iterdir())] == [places[1].path, places[2].path]
    slices.write(half)
    assert not Path(places[2].path).exists()
    slices.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_spool_gives_back_what_was_written(tmp_path: Path, size: int) -> None:
    spool = GatewaySpool(tmp_path / "gateway")
    places = [spool.write(bytes([number]) * size) for number in range(5)]
    for number, place in enumerate(places):
        data = Path(place.path).read_bytes()[place.start : place.end]
        assert data == bytes([number]) * size
    spool.close()


async def test_a_spool_file_that_cannot_be_removed_ends_no_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES_MAX", 1)  # a file for each slice
    unlink = Path.unlink

    def fail(path: Path, **keywords: bool) -> None:
        if path.parent.name == "gateway":
            raise OSError(errno.EIO, "the disk fails", str(path))
        unlink(path, **keywords)

    scene = WalScene(tmp_path)
    slices = Slices(scene)

    def release(_: int, placed: Sequence[tuple[int, int]]) -> None:
        for number, _position in placed:
            slices.spool.release(slices.ranges[number])

    scene.chain.foreign_committed.subscribe(release)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        for _ in range(3):
            slices.take()
        await slices.are_committed()
        slices.take()
        await slices.are_committed()
    assert not scene.chain.is_deposed
    said = "file of a gateway's slices not removed, it stays until the node starts again"
    assert said in caplog.messages
    await scene.close()
