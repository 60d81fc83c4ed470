"""A sealed segment's file is whole, or what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path
from struct import pack_into

from tidelog_core.log.segments.segment_check import SegmentDamage, check_segment
from tidelog_core.log.values import SealedSegment
from tidelog_core.records.header import LOG_OVERHEAD

from tests.support.batches import batch
from tests.support.log_building import append, headers_of, open_log


def a_sealed(folder: Path) -> SealedSegment:
    log = open_log(folder)
    for _ in range(5):
        append(log, batch(3))
    log.roll()
    (sealed,) = log.sealed_segments()
    log.close()
    return sealed


def found(sealed: SealedSegment) -> SegmentDamage | None:
    return check_segment(
        sealed.path,
        base_offset=sealed.base_offset,
        end_offset=sealed.end_offset,
        size_bytes=sealed.size_bytes,
        leader_epochs=sealed.leader_epochs,
    )


def test_every_flipped_byte_is_found_and_its_batch_named(tmp_path: Path) -> None:
    sealed = a_sealed(tmp_path / "log")
    assert found(sealed) is None
    content = sealed.path.read_bytes()
    batch_size_bytes = headers_of(content)[0].size_bytes
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        sealed.path.write_bytes(damaged)
        damage = found(sealed)
        assert damage is not None, at
        assert damage.position in {at // batch_size_bytes * batch_size_bytes, 0} or (
            at % batch_size_bytes < 8  # A base offset may be wrong for the batch behind it.
        )
        assert str(sealed.path) in str(damage)


def test_leader_epochs_are_those_of_the_logs_own_checkpoint(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for epoch in (0, 3, 3, 7):
        append(log, batch(3), epoch=epoch)
    log.assign_leader_epoch(9)  # which has not written anything
    log.roll()
    (sealed,) = log.sealed_segments()
    assert found(sealed) is None
    content = sealed.path.read_bytes()
    size_bytes = len(content) // 4
    for index, epochs in enumerate([(1, 3), (0, 2, 4), (0, 2, 7), (3, 6, 9)]):
        for epoch in epochs:
            damaged = bytearray(content)
            pack_into(">i", damaged, index * size_bytes + LOG_OVERHEAD, epoch)
            sealed.path.write_bytes(damaged)
            damage = found(sealed)
            assert damage is not None, (index, epoch)
            assert damage.position == index * size_bytes
            assert f"leader epoch {epoch}" in damage.problem
    log.close()


def test_what_the_checkpoint_no_longer_tells_is_held_to_what_came_after(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for epoch in (2, 3, 5):
        append(log, batch(3), epoch=epoch)
    log.roll()
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(6)
    (sealed,) = log.sealed_segments()
    assert sealed.leader_epochs == ((5, 6),)
    assert found(sealed) is None
    content = sealed.path.read_bytes()
    for epoch, is_right in ((4, True), (5, True), (6, False)):
        damaged = bytearray(content)
        pack_into(">i", damaged, LOG_OVERHEAD, epoch)
        sealed.path.write_bytes(damaged)
        assert (found(sealed) is None) == is_right
    log.close()


def test_a_file_that_is_cut_or_gone_is_damaged(tmp_path: Path) -> None:
    sealed = a_sealed(tmp_path / "log")
    content = sealed.path.read_bytes()
    sealed.path.write_bytes(content[:-1])
    damage = found(sealed)
    assert damage is not None
    assert f"{len(content) - 1} bytes instead of {len(content)}" in str(damage)
    assert damage.position == len(content) // 5 * 4
    sealed.path.unlink()
    damage = found(sealed)
    assert damage is not None
    assert "No such file" in str(damage)


def test_the_rate_limit_counts_every_byte(tmp_path: Path) -> None:
    sealed = a_sealed(tmp_path / "log")
    told: list[int] = []
    check_segment(
        sealed.path,
        base_offset=sealed.base_offset,
        end_offset=sealed.end_offset,
        size_bytes=sealed.size_bytes,
        leader_epochs=(),
        throttle=told.append,
    )
    assert sum(told) == sealed.size_bytes
