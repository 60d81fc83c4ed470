"""The process that inspects batches whose request is too much work for the node's event loop.

    python -m tidelog_node.inspection.worker

Reads jobs from standard input, one after the other, and writes to standard output what each
came to, or the error that it met with. A process of its own, because records are looked at one
by one: on any thread of the node that would keep the interpreter from its event loop. What a
batch takes in memory (at most twice ``DECOMPRESSED_SIZE_BYTES_MAX``) is taken here, for one
batch at a time. It ends with its standard input, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import os
import select
import sys

from tidelog_core.errors import TidelogError
from tidelog_core.log.append_checks import check_produced
from tidelog_core.records.batch import find_record

from tidelog_node.inspection.messages import Checked, CheckJob, Found, Job
from tidelog_node.piped_messages import read_bytes, read_message, write_message

NICENESS = 5  # behind the node, before compaction; see nice(2)
IDLE_SECONDS_MAX = 60.0


def do_job(job: Job, batches: bytearray) -> Checked | Found:
    """Return what the job came to. Raises ``TidelogError``."""
    if not isinstance(job, CheckJob):
        return find_record(batches, job.timestamp_ms, job.start_offset)
    buffer, headers = check_produced(batches, job.config, now_ms=job.now_ms)
    return Checked(None if buffer is batches else bytes(buffer), headers)


def main() -> None:
    """Do jobs until there are no more."""
    os.nice(NICENESS)
    source, output = sys.stdin.buffer, sys.stdout.buffer
    while select.select([source], [], [], IDLE_SECONDS_MAX)[0]:
        try:
            job = read_message(source)
            assert isinstance(job, Job)
            batches = read_bytes(source, job.size_bytes)
        except EOFError:
            return
        answer: object
        try:
            answer = do_job(job, batches)
        except TidelogError as error:
            answer = error
        write_message(output, answer)


if __name__ == "__main__":
    main()
