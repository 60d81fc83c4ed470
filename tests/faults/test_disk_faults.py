"""The layer that fails file calls does so where, when and as it is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from tests.faults.disk_faults import ALL_CALLS, DiskFaults

CHILD = """
import os, sys
from pathlib import Path

folder = Path(sys.argv[1])
for line in sys.stdin:
    call, name = line.split()
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT)
    try:
        if call == "write":
            os.pwrite(descriptor, b"xyz", 0)
            os.write(descriptor, b"xyz")
        elif call == "fsync":
            os.fsync(descriptor)
        elif call == "truncate":
            os.ftruncate(descriptor, 1)
        else:
            os.pread(descriptor, 1, 0)
            os.read(descriptor, 1)
        answer = 0
    except OSError as error:
        answer = error.errno
    os.close(descriptor)
    print(answer, flush=True)
"""


def test_calls_fail_as_long_and_where_the_control_file_says(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "control")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, **faults.environment()},
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def ask(call: str, name: str = "a") -> int:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{call} {name}\n")
        return int(child.stdout.readline())

    assert [ask(call) for call in ALL_CALLS] == [0, 0, 0, 0]
    for failing in ALL_CALLS:
        with faults.failing(errno.EIO, (failing,), tmp_path / "a"):
            expected = [errno.EIO if call == failing else 0 for call in ALL_CALLS]
            assert [ask(call) for call in ALL_CALLS] == expected
            assert [ask(call, "b") for call in ALL_CALLS] == [0, 0, 0, 0]
    faults.fail(errno.ENOSPC, ("write",), tmp_path / "b")
    faults.fail(errno.EIO, ("fsync", "read"), tmp_path)
    assert [ask(call, "b") for call in ALL_CALLS] == [errno.ENOSPC, errno.EIO, errno.EIO, 0]
    faults.heal()
    assert [ask(call, "b") for call in ALL_CALLS] == [0, 0, 0, 0]
    child.stdin.close()
    assert child.wait(60) == 0
    child.stdout.close()
