"""Reads a topic into a pandas ``DataFrame``, in a process of its own, and prints the rate.

    python -m bench.frame_reading WAY BOOTSTRAP TOPIC COUNT

A program mostly reads into a ``DataFrame`` once, so the memory for it is new. Within the process of
other measurements some ways would get memory that these have given back.

Free memory is touched before: a hypervisor that has taken it back makes a new page cost several
times as much. ``--untouched`` leaves it as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from tidelog import scan_arrow

from bench.free_memory import touch_free_memory

FETCH_BYTES = 8 * 1024 * 1024  # of every client, as in ``scan_arrow``
FRAME_BYTES = 1024 * 1024 * 1024  # more than any ``DataFrame`` takes
_FIRST_COUNT = 1_000  # It loads code, and is not measured.


def frame_rate(
    way: str, bootstrap: str, topic: str, count: int, *, is_untouched: bool = False
) -> float:
    """Return the records a second of CPU time, measured in another process."""
    arguments = [way, bootstrap, topic, str(count), *(["--untouched"] if is_untouched else [])]
    done = subprocess.run(
        [sys.executable, "-m", "bench.frame_reading", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    arguments = _parser().parse_args()
    read = WAYS[arguments.way]
    read(arguments.bootstrap, arguments.topic, _FIRST_COUNT)
    if not arguments.untouched:
        touch_free_memory(FRAME_BYTES)
    began = time.process_time()
    frame = read(arguments.bootstrap, arguments.topic, arguments.count)
    spent = time.process_time() - began
    assert len(frame) >= arguments.count
    print(len(frame) / spent)


def consumed(bootstrap: str, topic: str, count: int) -> Iterator[list[Any]]:
    """Yield at least so many records as confluent-kafka's ``consume`` returns them."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": FETCH_BYTES,
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    left = count
    while left > 0:
        found = consumer.consume(10_000, timeout=1.0)
        left -= len(found)
        yield found
    consumer.close()


def _of_arrow_types(bootstrap: str, topic: str, count: int) -> pd.DataFrame:
    table = scan_arrow(topic, 0, count, bootstrap_servers=bootstrap).read_all()
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def _of_objects(bootstrap: str, topic: str, count: int) -> pd.DataFrame:
    return scan_arrow(topic, 0, count, bootstrap_servers=bootstrap).read_all().to_pandas()


def _of_confluent(bootstrap: str, topic: str, count: int) -> pd.DataFrame:
    rows = [
        (m.key(), m.value(), m.topic(), m.partition(), m.offset(), m.timestamp()[1])
        for found in consumed(bootstrap, topic, count)
        for m in found
    ]
    frame = pd.DataFrame.from_records(
        rows, columns=["key", "value", "topic", "partition", "offset", "timestamp"]
    )
    frame["timestamp"] = pd.to_datetime(frame["timestamp"], unit="ms", utc=True)
    return frame


WAYS: dict[str, Callable[[str, str, int], pd.DataFrame]] = {
    "pandas": _of_arrow_types,
    "pandas, objects": _of_objects,
    "pandas, confluent": _of_confluent,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frame_reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    parser.add_argument("--untouched", action="store_true", help="free memory is as it is")
    return parser


if __name__ == "__main__":
    main()
