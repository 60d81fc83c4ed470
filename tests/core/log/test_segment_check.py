"""A sealed segment's file is whole, or what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

from tidelog_core.log.segment_check import SegmentDamage, check_segment
from tidelog_core.log.values import SealedSegment

from tests.core.log.building import append, batch, headers_of, open_log


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
    )


def test_every_flipped_byte_is_found_and_its_batch_named(tmp_path: Path) -> None:
    sealed = a_sealed(tmp_path / "log")
    assert found(sealed) is None
    content = sealed.path.read_bytes()
    batch_size_bytes = headers_of(content)[0].size_bytes
    epoch = range(12, 16)  # The leader epoch is under no CRC, and the magic says what it says.
    for at in range(len(content)):
        if at % batch_size_bytes in epoch:
            continue
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        sealed.path.write_bytes(damaged)
        damage = found(sealed)
        assert damage is not None, at
        assert damage.position in {at // batch_size_bytes * batch_size_bytes, 0} or (
            at % batch_size_bytes < 8  # A base offset may be wrong for the batch behind it.
        )
        assert str(sealed.path) in str(damage)


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


def test_the_one_who_limits_the_rate_is_told_of_every_byte(tmp_path: Path) -> None:
    sealed = a_sealed(tmp_path / "log")
    told: list[int] = []
    check_segment(
        sealed.path,
        base_offset=sealed.base_offset,
        end_offset=sealed.end_offset,
        size_bytes=sealed.size_bytes,
        throttle=told.append,
    )
    assert sum(told) == sealed.size_bytes
