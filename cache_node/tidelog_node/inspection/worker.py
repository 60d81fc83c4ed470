"""The process that inspects batches which would block the node's event loop for too long.

    python -m tidelog_node.inspection.worker --node-version=VERSION

It reads jobs from standard input, one at a time, and writes each result or error to standard
output. It is a process because records are parsed one by one: a thread of the node would hold the
interpreter and block the event loop. It also pays the memory of a batch (at most twice
``DECOMPRESSED_SIZE_BYTES_MAX``), of one at a time. It ends with its standard input, or after
``IDLE_SECONDS_MAX`` without a job.
"""

from __future__ import annotations

import os
import select
import sys

from tidelog_core.errors import TidelogError
from tidelog_core.log.append_checks import check_produced
from tidelog_core.records.batch import find_record

from tidelog_node.inspection.messages import Checked, CheckJob, Found, FramesFound, FramesJob, Job
from tidelog_node.inspection.schema_frames import frames_of
from tidelog_node.processes.piped_messages import read_bytes, read_message, write_message
from tidelog_node.processes.worker_version import require_same_version

NICENESS = 5  # behind the node, before compaction; see nice(2)
IDLE_SECONDS_MAX = 60.0

Answer = Checked | Found | FramesFound


def do_job(job: Job, batches: bytearray) -> Answer:
    """Return the result of the job. Raises ``TidelogError``."""
    if isinstance(job, FramesJob):
        return frames_of(batches, job.parts)
    if not isinstance(job, CheckJob):
        return find_record(batches, job.timestamp_ms, job.start_offset)
    buffer, headers = check_produced(batches, job.config, now_ms=job.now_ms)
    return Checked(None if buffer is batches else bytes(buffer), headers)


def main() -> None:
    """Do jobs until standard input ends or none comes for ``IDLE_SECONDS_MAX``."""
    require_same_version(sys.argv[1:])
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
