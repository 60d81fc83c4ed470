"""The process that compacts one log's segments, or erases a key from them, and ends.

    python -m tidelog_node.compaction.rewriter --node-version=VERSION

Reads a ``RewriterJob`` from standard input; writes a ``CleanedGroup`` to standard output
for every finished group of segments, then a ``RewriteEnd``, or the error. A separate
process, because the node's event loop must not wait for the interpreter while records are
decoded; a new one for every log, so that its memory is released.

It ends when the node that started it ends, at any point of its work: the next process of the
node may write the same files.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import BinaryIO

from tidelog_core.compaction.cleaner import build_offset_map, clean_groups
from tidelog_core.erasure.log_files import ErasingTask, erase_groups
from tidelog_core.errors import TidelogError

from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.processes.piped_messages import read_message, write_message
from tidelog_node.processes.worker_version import require_same_version
from tidelog_node.tier.bandwidth import Bandwidth

NICENESS = 10  # behind the node and its tier worker; see nice(2)
THROTTLE_BYTES = 256 * 1024  # read or written between two checks of the clock


class Throttle:
    """Limits the average rate of bytes read and written, by sleeping."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bandwidth = Bandwidth(bytes_per_second)
        self._gathered = 0

    def __call__(self, size_bytes: int) -> None:
        """Count bytes before they are read or written; blocks until the rate allows them."""
        self._gathered += size_bytes
        if self._gathered >= THROTTLE_BYTES:
            wait_s = self._bandwidth.take(self._gathered, now=time.monotonic())
            self._gathered = 0
            if wait_s > 0:
                time.sleep(wait_s)


def run_job(job: RewriterJob, output: BinaryIO) -> None:
    """Do the task; write each group to ``output`` as soon as it can be swapped in."""
    throttle, task = Throttle(job.bytes_per_second), job.task
    try:
        if isinstance(task, ErasingTask):
            groups, end_offset = erase_groups(task, throttle), task.up_to
        else:
            latest = build_offset_map(task, throttle)
            groups, end_offset = clean_groups(task, latest, throttle), latest.end_offset
        for group in groups:
            write_message(output, group)
        write_message(output, RewriteEnd(end_offset))
    except (TidelogError, OSError) as error:
        write_message(output, error)


def _end_with_standard_input(source: BinaryIO) -> None:
    source.read(1)
    os._exit(1)


def main() -> None:
    """Read a job from standard input and run it."""
    require_same_version(sys.argv[1:])
    os.nice(NICENESS)
    job = read_message(sys.stdin.buffer)
    assert isinstance(job, RewriterJob)
    watch = threading.Thread(target=_end_with_standard_input, args=(sys.stdin.buffer,), daemon=True)
    watch.start()
    run_job(job, sys.stdout.buffer)
    os._exit(0)  # An orderly exit would wait for standard input, which the thread reads.


if __name__ == "__main__":
    main()
