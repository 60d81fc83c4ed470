"""Many logs with few files: who may be let go of, and that nobody notices."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import LOG_SUFFIX
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.records.header import CRC_POSITION

from tests.support.batches import batch
from tests.support.log_building import append, content_of, headers_of, open_log, read_bytes

LOG_COUNT = 5
STEPS = st.tuples(
    st.sampled_from(["append", "read", "flush", "roll", "truncate", "reopen"]),
    st.integers(0, LOG_COUNT - 1),
)


def open_paths(folder: Path) -> list[str]:
    """Return the segment files under the folder that this process has open."""
    found = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        if descriptor.is_symlink():
            path = str(descriptor.readlink())
            if path.startswith(f"{folder}/") and path.endswith(LOG_SUFFIX):
                found.append(path)
    return found


def crc_of(content: bytes) -> bytes:
    return bytes(content[CRC_POSITION : CRC_POSITION + 4])


def crcs_in(log: LocalLog) -> list[bytes]:
    return [header.crc.to_bytes(4, "big") for header in headers_of(content_of(log))]


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, max_size=40), limit=st.integers(1, 4))
def test_logs_that_share_few_files_hold_what_each_would_alone(
    steps: list[tuple[str, int]], limit: int
) -> None:
    with TemporaryDirectory() as name:
        folder, files = Path(name), OpenFiles(limit)
        logs = [open_log(folder / str(n), open_files=files) for n in range(LOG_COUNT)]
        held: list[list[bytes]] = [[] for _ in logs]
        for step, n in steps:
            log, crcs = logs[n], held[n]
            match step:
                case "append":
                    content = batch(1)
                    with suppress(StorageError):  # All files may have to stay open.
                        append(log, content)
                        crcs.append(crc_of(content))
                case "read" if crcs:
                    assert crc_of(read_bytes(log, len(crcs) - 1)) == crcs[-1]
                case "flush":
                    log.flush()
                case "roll":
                    log.roll()
                case "truncate" if crcs:
                    crcs.pop()
                    log.truncate_to(len(crcs))
                case "reopen":
                    log.close()
                    logs[n] = open_log(folder / str(n), open_files=files)
            assert not logs[n].is_offline
            assert logs[n].log_end_offset == len(crcs)
            assert len(open_paths(folder)) == len(files) <= limit
        for log, crcs in zip(logs, held, strict=True):
            assert crcs_in(log) == crcs
            log.close()
        assert open_paths(folder) == []
        assert len(files) == 0


def test_a_file_stays_open_until_what_was_written_to_it_is_flushed(tmp_path: Path) -> None:
    """Else a page that could not be written back would be lost without an error."""
    files = OpenFiles(2)
    first, second, third = (open_log(tmp_path / str(n), open_files=files) for n in range(3))
    append(first, batch(1))
    append(second, batch(1))
    assert files.crowded_count == 1
    with pytest.raises(StorageError, match=os.strerror(errno.EMFILE)) as refused:
        append(third, batch(1))
    assert refused.value.retriable
    assert not third.is_offline
    assert third.log_end_offset == 0
    first.flush()
    append(third, batch(1))
    paths = {str(tmp_path / name / f"{0:020d}.log") for name in ("1", "2")}
    assert set(open_paths(tmp_path)) == paths
    for log in (first, second, third):
        log.close()


def test_a_flush_that_more_was_appended_to_meanwhile_keeps_the_file_open(tmp_path: Path) -> None:
    files = OpenFiles(1)
    log = open_log(tmp_path / "log", open_files=files)
    append(log, batch(1))
    pending = log.begin_flush()
    assert pending is not None
    append(log, batch(1))
    pending.run()
    log.finish_flush(pending)
    other = open_log(tmp_path / "other", open_files=files)
    with pytest.raises(StorageError):
        append(other, batch(1))
    log.flush()
    append(other, batch(1))
    log.close()
    other.close()


def test_a_slice_can_be_sent_after_its_file_was_let_go_of(tmp_path: Path) -> None:
    files = OpenFiles(1)
    first, second = (open_log(tmp_path / str(n), open_files=files) for n in range(2))
    append(first, batch(1))
    first.flush()
    read = first.read(0, max_bytes=1000, up_to=1)
    append(second, batch(1))
    assert read.slice is not None
    content = os.pread(read.slice.file.fileno(), read.slice.size_bytes, read.slice.position)
    assert len(headers_of(content)) == 1
    del read
    assert open_paths(tmp_path) == [str(tmp_path / "1" / f"{0:020d}.log")]
    first.close()
    second.close()


def test_a_flush_that_finds_no_descriptor_is_tried_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    pending = log.begin_flush()
    assert pending is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Not 0: poll(2) fails if it is given more descriptors than that, also in other threads.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            pending.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    log.fail_flush(pending)
    assert not log.is_offline
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 1
    log.close()
