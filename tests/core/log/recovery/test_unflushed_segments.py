"""What a failed fsync leaves in doubt is written again, and opened as after a crash."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tidelog_core.log.recovery.unflushed_segments import rewrite_unflushed
from tidelog_core.log.values import CorruptLog

from tests.faults.disk_faults import DiskFaults
from tests.support.batches import batch
from tests.support.log_building import append, content_of, headers_of, open_log

REWRITE = """
import sys
from pathlib import Path
from tidelog_core.log.recovery.unflushed_segments import rewrite_unflushed
directory, *quarantine = map(Path, sys.argv[1:])
rewrite_unflushed(directory, quarantine=quarantine[0] if quarantine else None)
"""


def identities(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.glob("*.log")}


def test_only_files_past_the_recovery_point_are_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=500)
    for _ in range(12):
        append(log, batch(2))
    log.flush(10)
    point, before = log.recovery_point, content_of(log)
    bases = [s.base_offset for s in log.sealed_segments()] + [log.active_segment_base_offset]
    old = identities(log.directory)
    log.take_offline()
    log.close()
    (tmp_path / "log" / f"{bases[-1]:020d}.log.tmp").write_bytes(b"of a crash")
    rewrite_unflushed(log.directory)
    new = identities(log.directory)
    ends = [*bases[1:], 2**63]
    for base_offset, end_offset in zip(bases, ends, strict=True):
        name = f"{base_offset:020d}.log"
        assert (new[name] == old[name]) is (end_offset <= point)
    again = open_log(tmp_path / "log", segment_bytes=500)
    assert content_of(again) == before
    again.close()


def test_what_has_lost_its_bytes_is_cut_where_the_log_is_opened(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for _ in range(6):
        append(log, batch(1))
    headers = headers_of(content_of(log))
    log.take_offline()
    log.close()
    (path,) = (tmp_path / "log").glob("*.log")
    os.truncate(path, 3 * headers[0].size_bytes + 20)
    rewrite_unflushed(log.directory)
    again = open_log(tmp_path / "log")
    assert again.log_end_offset == 3
    again.close()


def rewrite_with_faults(faults: DiskFaults, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REWRITE, *map(str, paths)],
        env={**os.environ, **faults.environment()},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("is_flushed", [False, True])
def test_what_the_disk_does_not_give_is_lost_only_once_its_file_may_be_kept(
    is_flushed: bool, tmp_path: Path
) -> None:
    log = open_log(tmp_path / "log", segment_bytes=500)
    for _ in range(12):
        append(log, batch(2))
    bases = [s.base_offset for s in log.sealed_segments()] + [log.active_segment_base_offset]
    if is_flushed:
        log.flush()
        append(log, batch(2))
    content = content_of(log)
    log.take_offline()
    log.close()
    bad = tmp_path / "log" / f"{bases[-1]:020d}.log"
    before, quarantine = bad.read_bytes(), tmp_path / "quarantine"
    faults = DiskFaults(tmp_path / "faults")
    with faults.failing(errno.EIO, ("read",), bad):
        refused = rewrite_with_faults(faults, log.directory)
        assert f"Errno {errno.EIO}" in refused.stderr
        assert bad.read_bytes() == before
        done = rewrite_with_faults(faults, log.directory, quarantine)
        assert done.returncode == 0, done.stderr
    assert [kept.read_bytes() for kept in quarantine.iterdir()] == [before]
    if is_flushed:
        with pytest.raises(CorruptLog, match="is damaged at position 0"):
            open_log(tmp_path / "log", segment_bytes=500)
        return
    again = open_log(tmp_path / "log", segment_bytes=500)
    assert again.log_end_offset == bases[-1]
    assert content.startswith(content_of(again))
    again.close()
