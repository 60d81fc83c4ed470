"""What a torn log loses: only what was not flushed."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import RECOVERY_POINT_FILE
from tidelog_core.records.batch import Record, build_batch
from tidelog_node.membership.run_mark import (
    RunMark,
    may_have_lost_records,
    read_run_mark,
    write_run_mark,
)

from tests.chaos.torn import forget_boot, tear

BATCH_COUNT = 6


def make_log(directory: Path, *, recovery_point: int | None) -> tuple[Path, list[int]]:
    """Write one segment of single-record batches; return it and where each batch ends."""
    content, ends = b"", []
    for offset in range(BATCH_COUNT):
        content += build_batch([Record(offset, 1, None, b"v" * 50, ())], base_offset=offset)
        ends.append(len(content))
    path = directory / f"{0:020d}.log"
    path.write_bytes(content)
    if recovery_point is not None:
        write_checkpoint(directory / RECOVERY_POINT_FILE, [[recovery_point]])
    return path, ends


@pytest.mark.parametrize("seed", range(30))
def test_flushed_batches_stay_and_what_follows_is_damaged(tmp_path: Path, seed: int) -> None:
    path, ends = make_log(tmp_path, recovery_point=3)
    before = path.read_bytes()
    lost = tear(tmp_path, random.Random(seed))
    after = path.read_bytes()
    assert lost > 0
    assert after[: ends[2]] == before[: ends[2]]
    assert after != before


def test_a_log_that_is_flushed_to_its_end_stays_as_it_is(tmp_path: Path) -> None:
    path, _ = make_log(tmp_path, recovery_point=BATCH_COUNT)
    before = path.read_bytes()
    assert tear(tmp_path, random.Random(1)) == 0
    assert path.read_bytes() == before


def test_a_log_that_was_never_flushed_may_lose_everything(tmp_path: Path) -> None:
    sizes = set()
    for seed in range(40):
        path, _ = make_log(tmp_path, recovery_point=None)
        tear(tmp_path, random.Random(seed))
        sizes.add(path.stat().st_size)
    assert min(sizes) < 150


def test_a_directory_without_a_log_has_nothing_to_lose(tmp_path: Path) -> None:
    assert tear(tmp_path, random.Random(1)) == 0


def test_a_torn_node_finds_that_the_machine_has_gone_down(tmp_path: Path) -> None:
    write_run_mark(tmp_path, RunMark(UUID(int=5), "this-boot"))
    forget_boot(tmp_path)
    mark = read_run_mark(tmp_path)
    assert mark is not None
    assert mark.incarnation == UUID(int=5)
    assert may_have_lost_records(mark, was_clean=False, boot_id="this-boot")
