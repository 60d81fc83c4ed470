"""A process that appends until it is killed: ``python -m tests.core.log.appending_child``.

Arguments: directory, seed. Every acknowledged end offset, and every flushed one, is
written to standard output as a line.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tidelog_core.records.batch import Record, build_batch

from tests.support.clock import NOW_MS
from tests.support.log_building import open_log

SEGMENT_BYTES = 20_000
PRODUCER_ID = 7


def value_at(offset: int) -> bytes:
    """Return the value that belongs at an offset."""
    return random.Random(offset).randbytes(offset % 300)


def main() -> None:
    """Append for ever."""
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    while True:
        base = log.log_end_offset
        records = [
            Record(0, NOW_MS + base, b"key", value_at(base + delta))
            for delta in range(rng.randrange(1, 20))
        ]
        content = build_batch(
            records, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=base
        )
        log.append_as_leader(bytearray(content), leader_epoch=seed)
        sys.stdout.write(f"a {log.log_end_offset}\n")
        sys.stdout.flush()
        if rng.random() < 0.05:
            log.flush()
            sys.stdout.write(f"f {log.recovery_point}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
