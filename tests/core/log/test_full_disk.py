"""A disk that is full: nothing acknowledged is lost, and room can be made on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import subprocess, sys
from pathlib import Path
from tidelog_core.errors import StorageError
from tests.support.log_building import append, batch, content_of, headers_of, open_log

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000000", "tmpfs", disk], check=True)
settings = {"segment_bytes": 200_000}
log = open_log(disk / "log", **settings)
acknowledged = []
while True:
    try:
        acknowledged.append(append(log, batch(value_size_bytes=10_000)).base_offset)
    except StorageError as error:
        assert "No space left" in str(error), error
        break
assert acknowledged == list(range(len(acknowledged)))
(disk / "rest").write_bytes(b"")
with open(disk / "rest", "wb", buffering=0) as rest:
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
assert len(headers_of(content_of(log))) == len(acknowledged)

# There is no room for a checkpoint: the flush fails, and nothing else does.
try:
    log.flush()
except StorageError as error:
    assert "No space left" in str(error), error
else:
    raise AssertionError("the disk is not full")
assert not log.is_offline
assert log.recovery_point == 0

# Room is made by what takes records away, although that must note it first.
sealed = log.sealed_segments()
log_start = 0
if sys.argv[2] == "eviction":
    log.set_tiered_up_to(sealed[0].end_offset)
    assert log.evict_local(sealed[0].end_offset) > 0
else:
    log.advance_high_watermark(log.log_end_offset)
    log_start = sealed[0].end_offset
    assert log.advance_log_start_offset(log_start)
log.flush()
assert log.recovery_point == log.log_end_offset == len(acknowledged)
acknowledged.append(append(log, batch(value_size_bytes=10_000)).base_offset)
assert acknowledged[-1] == len(acknowledged) - 1
log.close()
log = open_log(disk / "log", **settings)
assert (log.log_end_offset, log.log_start_offset) == (len(acknowledged), log_start)
assert log.local_log_start_offset == sealed[0].end_offset
log.close()
print("done")
"""


@pytest.mark.parametrize("way", ["eviction", "retention"])
def test_a_full_disk_loses_nothing_and_can_be_freed(way: str, tmp_path: Path) -> None:
    may_mount = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if may_mount.returncode != 0:
        pytest.skip("needs a mount namespace of its own")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", CHILD, str(tmp_path), way],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr[-3000:]
