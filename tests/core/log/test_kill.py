"""A process that appends is killed with SIGKILL, over and over, and loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tidelog_core.records.batch import decode_records, iter_headers

from tests.core.log.appending_child import PRODUCER_ID, SEGMENT_BYTES, value_at
from tests.support.log_building import content_of, headers_of, open_log

REPOSITORY = Path(__file__).resolve().parents[3]


def append_until_killed(directory: Path, seed: int, seconds: float) -> tuple[int, int]:
    """Return the last acknowledged and the last flushed end offset of a killed child."""
    command = [sys.executable, "-m", "tests.core.log.appending_child", str(directory), str(seed)]
    output = directory.parent / f"output-{seed}"
    with output.open("wb") as file:
        child = subprocess.Popen(command, cwd=REPOSITORY, stdout=file)
        deadline = time.monotonic() + 30
        while output.stat().st_size == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    lines = output.read_text().splitlines(keepends=True)
    facts = [line.split() for line in lines if line.endswith("\n")]
    appended = [int(fact[1]) for fact in facts if fact[0] == "a"]
    flushed = [int(fact[1]) for fact in facts if fact[0] == "f"]
    return max(appended), max(flushed, default=0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_writer_loses_no_acknowledged_record(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "log"
    rng = random.Random(seed)
    for life in range(4):
        appended, flushed = append_until_killed(directory, 10 * seed + life, rng.random() * 0.3)
        print(f"seed {seed} life {life}: {appended} appended, {flushed} flushed")
        log = open_log(directory, segment_bytes=SEGMENT_BYTES)
        assert log.log_end_offset >= appended
        assert log.recovery_point >= flushed
        content = content_of(log)
        headers = headers_of(content)
        assert [h.base_offset for h in headers] == [0] + [h.next_offset for h in headers[:-1]]
        assert headers[-1].next_offset == log.log_end_offset
        offset = 0
        for position, _ in iter_headers(content):
            for record in decode_records(content, position):
                assert (record.offset, record.value) == (offset, value_at(offset))
                offset += 1
        assert log.producers.count == 1
        entry = log.producers.state.entry(PRODUCER_ID)
        assert entry is not None
        assert entry.last_sequence == log.log_end_offset - 1
        assert log.leader_epoch == 10 * seed + life
        if life % 2:
            log.close()  # Else the next child finds it as the crash left it.
        else:
            log._segments.close()
