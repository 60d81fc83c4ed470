"""The process that works with schemas: it reads values with them.

    python -m tidelog_node.inspection.schema_worker --node-version=VERSION DATA_BYTES_MAX

It is a process of its own, beside that of ``worker``: a schema that takes all the time there is
delays no batch of a topic without schemas. It reads jobs from standard input, one at a time, and
writes the schema that it works with, then each result or error, to standard output. Its memory is
limited: what a schema takes beyond that ends the job, or the process by SIGABRT. It ends with its
standard input, after ``IDLE_SECONDS_MAX`` without a job, or when it has grown.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from pathlib import Path
from typing import BinaryIO

from tidelog_core.errors import TidelogError

from tidelog_node.inspection.messages import SchemaBegan
from tidelog_node.inspection.schema_messages import (
    NO_MEMORY,
    NamesJob,
    TooCostly,
    TooManyNames,
    ValuesJob,
)
from tidelog_node.inspection.schema_names import names_in
from tidelog_node.inspection.schema_values import Codecs, check_values, cpu_limited
from tidelog_node.inspection.worker import IDLE_SECONDS_MAX, NICENESS
from tidelog_node.processes.piped_messages import read_bytes, read_message, write_message
from tidelog_node.processes.worker_version import require_same_version

KEPT_BYTES_MAX = 256 << 20  # of resident memory; it has about 30 MiB at the start


def main(data_bytes_max: int) -> None:
    """Do jobs until standard input ends, none comes, or the process is too large."""
    os.nice(NICENESS)
    # Allocated memory counts, memory that is mapped from files does not.
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes_max, data_bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # It may end by SIGABRT often.
    source, output = sys.stdin.buffer, sys.stdout.buffer
    codecs = Codecs()
    while select.select([source], [], [], IDLE_SECONDS_MAX)[0]:
        try:
            job = read_message(source)
            assert isinstance(job, ValuesJob | NamesJob)
            batch = read_bytes(source, job.size_bytes)
        except EOFError:
            return
        answer = _done(job, batch, codecs, output)
        del job, batch
        write_message(output, answer)
        if isinstance(answer, TooCostly) or _resident_bytes() > KEPT_BYTES_MAX:
            return


def _done(job: ValuesJob | NamesJob, batch: bytearray, codecs: Codecs, output: BinaryIO) -> object:
    """Return the answer, which may be an error."""

    def announce(began: SchemaBegan) -> None:
        write_message(output, began)

    if isinstance(job, NamesJob):
        announce(SchemaBegan(job.schema.schema_id))
        try:
            with cpu_limited(job.seconds_max):
                return names_in(job.schema)
        except TooManyNames as error:
            return error
        except MemoryError:
            return TooCostly(job.schema.schema_id, NO_MEMORY)
    try:
        return check_values(batch, job, codecs, announce)
    except TidelogError as error:
        return error


def _resident_bytes() -> int:
    """Return the memory of the process; 0 where the kernel does not say it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


if __name__ == "__main__":
    require_same_version(sys.argv[1:])
    main(int(sys.argv[2]))
