"""The power fails at any fsync: only what was fsynced is there afterwards, and it is enough.

The disk is modelled at its worst: a file holds what it held at its own last fsync,
a name exists only if its directory was fsynced since. ``os.fsync`` is watched, and
before every call the directory that a power cut would leave is built and opened.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.core.log.power_cuts import Disk, watched
from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.log_building import append, content_of, headers_of, open_log


@pytest.mark.parametrize("seed", range(3))
def test_power_cut_before_any_fsync_leaves_a_prefix_with_all_that_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    directory = tmp_path / "log"
    disk = Disk(directory)
    state = {"flushed": 0, "cut": 0}

    def cut_power() -> None:
        state["cut"] += 1
        found = disk.after_power_cut(tmp_path / f"cut{state['cut']}")
        recovered = open_log(found, segment_bytes=600)
        content = content_of(recovered)
        assert recovered.log_end_offset >= state["flushed"]
        # Values are random, so equal bytes are the same batches, and in one run they lack none.
        assert content in bytes(written)
        if content:
            first = headers_of(content)[0].base_offset
            assert first <= max(recovered.log_start_offset, recovered.local_log_start_offset)
        recovered.close()

    written = bytearray()
    with watched(monkeypatch, disk, cut_power):
        log = open_log(directory, segment_bytes=600)
        for step in range(40):
            content = batch(rng.randrange(1, 4), value_size_bytes=rng.randrange(100))
            append(log, content, epoch=step // 10)
            written += content
            if rng.random() < 0.3:
                up_to = None if rng.random() < 0.5 else log.active_segment_base_offset
                log.flush(up_to)
                state["flushed"] = log.recovery_point
            if rng.random() < 0.1 and log.log_end_offset > 2:
                log.advance_log_start_offset(log.log_start_offset + 2)
        log.close()
        state["flushed"] = log.log_end_offset
        cut_power()
    print(f"seed {seed}: {state['cut']} power cuts")
    assert state["cut"] > 30


def test_flush_syncs_batches_then_checkpoints_then_names_then_the_recovery_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "log"
    disk = Disk(directory)
    with watched(monkeypatch, disk, lambda: None):
        log = open_log(directory, segment_bytes=200, index_interval_bytes=0)
        append(log, batch(1))
        append(log, batch(1))
        append(log, batch(1))
        log.flush()
    order = disk.synced
    first, second = f"{0:020d}", f"{2:020d}"
    assert order == [
        f"{first}.log",
        f"{first}.index",
        f"{first}.timeindex",
        f"{second}.snapshot",
        f"{second}.log",
        "leader-epoch-checkpoint.tmp",
        "sealed-segments.tmp",
        "log",
        tmp_path.name,
        "recovery-point.tmp",
        "log",
    ]
    log.close()


def test_truncation_lowers_the_recovery_point_before_it_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "log"
    log = open_log(directory, segment_bytes=200)
    for _ in range(6):
        append(log, batch(1))
    log.flush()
    disk = Disk(directory)
    states: list[int] = []

    def cut_power() -> None:
        found = disk.after_power_cut(tmp_path / f"cut{len(states)}")
        recovered = open_log(found, segment_bytes=200)
        states.append(recovered.log_end_offset)
        recovered.close()

    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        disk.note_fsync(descriptor)
        os.close(descriptor)
    disk.names = {entry.name: entry.inode() for entry in os.scandir(directory)}
    with watched(monkeypatch, disk, cut_power):
        log.truncate_to(3)
        cut_power()
    assert set(states) <= {3, 4, 5, 6}
    assert states[-1] == 3
    log.close()


def test_batches_cut_by_a_truncation_do_not_come_back_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "log"
    log = open_log(directory)
    for number in range(4):
        append(log, batch(1, timestamps=[NOW_MS + number]))
    log.truncate_to(1)
    append(log, batch(1, timestamps=[NOW_MS + 9]))
    log.flush()
    copy = content_of(log)
    log.close()
    (directory / "clean-shutdown").unlink()
    log = open_log(directory)
    assert content_of(log) == copy
    assert log.max_timestamp() == (NOW_MS + 9, 1)
    log.close()
