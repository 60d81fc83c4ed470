"""A dimension of partitions that one consumer names in every fetch, without a session.

As in librdkafka, each fetch begins with the next partition of a ring.
"""

from __future__ import annotations

import struct

from bench.peers.topics import PRODUCE, await_partitions
from bench.scaling.cluster import Cluster
from bench.scaling.workload import FETCH, RECORD, Latencies, produced, repeat
from tests.support.batches import batch_of
from tests.support.wire_client import frame, produce_body

POLL_MS = 30_000
_SIZE_BYTES_MAX = 50 << 20
_PARTITION_BYTES_MAX = 1 << 20


class PolledPartitions:
    """Partitions of one consumer, in separate topics.

    The workload uses them: a long poll over all, a record for one, its delivery.
    """

    name = "delivery of a record to a long poll over all"

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._ends: dict[str, int] = {}  # of each topic's first partition, up to which it is read

    def grow(self, cluster: Cluster, count: int) -> None:
        """Create a topic with the missing partitions."""
        name = f"polled-{count:06}"
        size = count - sum(self._sizes.values())
        cluster.create_topics({name: size})
        self._sizes[name] = size
        await_partitions(cluster.nodes[0], name, size)

    def close(self) -> None:
        """Nothing to release."""

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Deliver records to the first partition of the newest topic, one at a time."""
        hot = list(self._sizes)[-1]
        produce = frame(*PRODUCE, 1, produce_body(hot, batch_of(RECORD)), tags=b"")
        with cluster.client() as producer, cluster.client() as consumer:
            self._ends[hot] = produced(producer, produce, hot) + 1
            partition_count = sum(self._sizes.values())

            def once() -> None:
                first = self._ends[hot] % partition_count
                body = _fetch_body(self._sizes, self._ends, first=first)
                consumer.send(frame(*FETCH, 1, body, tags=b""))
                produced(producer, produce, hot)
                answer = consumer.receive()
                if RECORD not in answer:
                    raise RuntimeError("a long poll was answered without the record")
                self._ends[hot] += 1

            return repeat(once, count)


def _fetch_body(sizes: dict[str, int], offsets: dict[str, int], *, first: int) -> bytes:
    """Return the body of a Fetch request of version 11 that names all partitions.

    It begins with the partition at ``first``. Offsets are 0, except for the first partitions of the
    topics in ``offsets``.
    """
    ring = [(name, n) for name, size in sizes.items() for n in range(size)]
    topics: list[tuple[str, list[bytes]]] = []
    for name, n in ring[first:] + ring[:first]:
        if not topics or topics[-1][0] != name:
            topics.append((name, []))
        offset = 0 if n else offsets.get(name, 0)
        topics[-1][1].append(struct.pack(">iiqqi", n, -1, offset, -1, _PARTITION_BYTES_MAX))
    parts = [struct.pack(">iiiibii", -1, POLL_MS, 1, _SIZE_BYTES_MAX, 0, 0, -1)]
    parts.append(struct.pack(">i", len(topics)))
    for name, entries in topics:
        parts.append(struct.pack(">h", len(name)) + name.encode())
        parts.append(struct.pack(">i", len(entries)) + b"".join(entries))
    return b"".join([*parts, struct.pack(">ih", 0, 0)])
