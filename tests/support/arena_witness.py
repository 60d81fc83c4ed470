"""The other clients: what they wait for, and which records they were promised.

A process of its own, so that the attacker's work is not in what it measures. Every node gets
pings, small Metadata requests one after the other, and its partition of a topic small
``acks=all`` Produces. On SIGTERM it writes what it saw to a file and ends:

    {"waits": [[sent_at, seconds, what], ...],         time.monotonic, shared by all processes
     "acknowledged": {"<partition>": [offset, ...]}}   of records whose value is their number
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tidelog import Producer, TidelogError

from tests.support.wire_client import frame

PING_SECONDS = 0.01
WRITE_SECONDS = 0.05
REDIAL_SECONDS = 0.05
PING = frame(18, 0, 1, b"", tags=b"")  # ApiVersions, the request that every client begins with


@dataclass(slots=True)
class Sight:
    """What has been seen so far."""

    waits: list[tuple[float, float, str]] = field(default_factory=list)
    acknowledged: dict[int, list[int]] = field(default_factory=dict)

    def note(self, sent_at: float, what: str) -> None:
        """Note a wait that has just ended."""
        self.waits.append((sent_at, time.monotonic() - sent_at, what))


async def watch(bootstrap: str, topic: str, partitions: int) -> Sight:
    """Ask and write until SIGTERM; return what was seen."""
    sight, is_over = Sight(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    producer = Producer(
        bootstrap,
        acks=-1,
        linger_ms=0,
        request_timeout_ms=5_000,
        delivery_timeout_ms=60_000,
        max_block_ms=60_000,
    )
    async with producer:
        work = [
            asyncio.create_task(_ping(int(address.rpartition(":")[2]), sight))
            for address in bootstrap.split(",")
        ]
        work += [
            asyncio.create_task(_write(producer, topic, partition, sight))
            for partition in range(partitions)
        ]
        print("watching", flush=True)
        await is_over.wait()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return sight


async def _ping(port: int, sight: Sight) -> None:
    """Ping one node for ever; while nobody listens there, that is no wait for an answer."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(REDIAL_SECONDS)
            continue
        try:
            while True:
                sent_at = time.monotonic()
                try:
                    writer.write(PING)
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
                finally:
                    sight.note(sent_at, "ping")
                await asyncio.sleep(PING_SECONDS)
        except (OSError, EOFError):
            await asyncio.sleep(REDIAL_SECONDS)
        finally:
            writer.close()


async def _write(producer: Producer, topic: str, partition: int, sight: Sight) -> None:
    acknowledged = sight.acknowledged.setdefault(partition, [])
    for number in range(sys.maxsize):
        sent_at = time.monotonic()
        try:
            value = str(number).encode()
            record = await producer.send_and_wait(topic, value, partition=partition)
        except TidelogError as error:
            print(f"not acknowledged: {error!r}", file=sys.stderr, flush=True)
        else:
            acknowledged.append(record.offset)
        finally:
            sight.note(sent_at, "write")
        await asyncio.sleep(WRITE_SECONDS)


def main() -> None:
    """Run as a process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("partitions", type=int)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    sight = asyncio.run(watch(arguments.bootstrap, arguments.topic, arguments.partitions))
    seen = {"waits": sight.waits, "acknowledged": sight.acknowledged}
    arguments.path.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
