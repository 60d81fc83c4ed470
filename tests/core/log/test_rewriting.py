"""What a failed fsync leaves in doubt is written again, and opened as after a crash."""

from __future__ import annotations

import os
from pathlib import Path

from tidelog_core.log.rewriting import rewrite_unflushed

from tests.core.log.building import append, batch, content_of, headers_of, open_log


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
