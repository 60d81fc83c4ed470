"""Segment files that are gone or cut: the log is not opened, and the right file is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.log.paths import LOG_SUFFIX, SEGMENT_FILE, START_OFFSET_FILE, segment_path
from tidelog_core.log.values import CorruptLog

from tests.support.batches import batch
from tests.support.log_building import append, open_log

SMALL = {"segment_bytes": 400}


def bases_of(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*{LOG_SUFFIX}"))


def a_log(folder: Path, *, flushes: bool = True) -> list[int]:
    """Write some segments; return their base offsets."""
    log = open_log(folder, **SMALL)
    for _ in range(20):
        append(log, batch(2))
    if flushes:
        log.flush()
    log.close()
    return bases_of(folder)


def path_of(folder: Path, base_offset: int) -> Path:
    return segment_path(folder, base_offset, LOG_SUFFIX)


@pytest.mark.parametrize("has_seals", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("index", [0, 1, 3, -2])
def test_the_file_that_is_gone_is_named(
    index: int, is_clean: bool, has_seals: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    bases = a_log(folder)
    gone = path_of(folder, bases[index])
    gone.unlink()
    if not is_clean:
        (folder / "clean-shutdown").unlink()
    if not has_seals:
        (folder / SEGMENT_FILE).unlink()
    with pytest.raises(CorruptLog, match=f"{gone} is missing"):
        open_log(folder, **SMALL)
    assert len(bases_of(folder)) == len(bases) - 1  # Nothing was changed.


def test_several_files_that_are_gone_are_told_by_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    bases = a_log(folder)
    for base_offset in bases[1:4]:
        path_of(folder, base_offset).unlink()
    with pytest.raises(CorruptLog, match=f"{path_of(folder, bases[1])} is missing.* {bases[4]}"):
        open_log(folder, **SMALL)


def test_the_last_file_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    bases = a_log(folder)
    path_of(folder, bases[-1]).unlink()
    with pytest.raises(CorruptLog, match=f"or {path_of(folder, bases[-1])} is missing"):
        open_log(folder, **SMALL)


@pytest.mark.parametrize("index", [0, 2, -1])
def test_the_file_that_is_cut_is_named(index: int, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    bases = a_log(folder)
    cut = path_of(folder, bases[index])
    os.truncate(cut, cut.stat().st_size - 10)
    with pytest.raises(CorruptLog, match=str(cut)):
        open_log(folder, **SMALL)


def test_a_local_start_that_is_not_known_blames_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    bases = a_log(folder)
    log = open_log(folder, **SMALL)
    log.set_tiered_up_to(bases[2])
    log.evict_local(bases[2])
    log.close()
    (folder / START_OFFSET_FILE).write_bytes(b"nothing")
    log = open_log(folder, **SMALL)
    assert log.local_log_start_offset == bases[2]
    log.close()
