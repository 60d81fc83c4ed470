"""The process that compacts one log's segments, or erases a key from them, and ends.

    python -m tidelog_node.compaction.rewriter

Reads a ``RewriterJob`` from standard input; writes a ``CleanedGroup`` to standard output
for every group of segments that is through, then a ``RewriteEnd``, or what went wrong. A
process of its own, because the node's event loop must not wait for the interpreter while
records are decoded; a new one for every log, because then its memory is given back.

It ends with the node that started it, wherever it is: another node process may be about to
write the same files.
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
from tidelog_node.piped_messages import read_message, write_message
from tidelog_node.tier.bandwidth import Bandwidth

NICENESS = 10  # behind the node and its tier worker; see nice(2)
THROTTLE_BYTES = 256 * 1024  # how much is read or written between two looks at the clock


class Throttle:
    """Sleeps so that no more bytes than allowed pass in a second, on average."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bandwidth = Bandwidth(bytes_per_second)
        self._gathered = 0

    def __call__(self, size_bytes: int) -> None:
        """Note bytes about to be read or written; blocks until they may be."""
        self._gathered += size_bytes
        if self._gathered >= THROTTLE_BYTES:
            wait_s = self._bandwidth.take(self._gathered, now=time.monotonic())
            self._gathered = 0
            if wait_s > 0:
                time.sleep(wait_s)


def run_job(job: RewriterJob, output: BinaryIO) -> None:
    """Do the task, and tell of each group as soon as it can be put in place."""
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
    """Do the job of standard input."""
    os.nice(NICENESS)
    job = read_message(sys.stdin.buffer)
    assert isinstance(job, RewriterJob)
    watch = threading.Thread(target=_end_with_standard_input, args=(sys.stdin.buffer,), daemon=True)
    watch.start()
    run_job(job, sys.stdout.buffer)
    os._exit(0)  # The thread holds standard input, which an orderly exit would wait for.


if __name__ == "__main__":
    main()
