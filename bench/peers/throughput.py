"""Measures produce and fetch with librdkafka by sizes, partitions, codecs, acks and consumers.

The base is 1 KB records in one partition, uncompressed, acks=1, and one consumer; each other case
changes one of these. Gigabytes are those of the uncompressed records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import limits
from bench.peers import clients, topics
from bench.peers.arena import Arena
from bench.peers.clients import Load
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.process import Node

WORKLOAD = "throughput"
BASE = "1 KB"
_FETCH_PASSES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """Produces a load to one topic, then fetches it."""

    load: Load
    consumer_count: int = 1
    fetch_size_bytes: int = 16_000_000

    def __call__(self, arena: Arena, peer: Peer) -> Mapping[str, float]:
        node = arena.node(peer)
        load = self.load
        figures: dict[str, float] = {}
        with topics.fresh_topic(node, peer, load.partition_count) as topic:
            produce = lambda: clients.produce(node, topic, load)  # noqa: E731
            figures |= measured("produce", node, load.size_bytes, produce)
            passes = 1 if self.consumer_count > 1 else _FETCH_PASSES

            def fetch() -> None:
                for _ in range(passes):
                    clients.fetch(
                        node,
                        topic,
                        load,
                        consumer_count=self.consumer_count,
                        fetch_size_bytes=self.fetch_size_bytes,
                    )

            size_bytes = load.size_bytes * passes * self.consumer_count
            figures |= measured("fetch", node, size_bytes, fetch)
            figures["memory_mb"] = node.resident_megabytes()
        return figures


def measured(name: str, node: Node, size_bytes: int, work: Callable[[], None]) -> dict[str, float]:
    """Return the rate of the bytes and their cost for the server."""
    cpu_before, started = node.cpu_seconds(), time.perf_counter()
    work()
    wall, cpu = time.perf_counter() - started, node.cpu_seconds() - cpu_before
    return {
        f"{name}_mb_per_s": size_bytes / wall / 1e6,
        f"{name}_cpu_s_per_gb": cpu / size_bytes * 1e9,
    }


def bare_loops(arena: Arena) -> Mapping[str, float]:
    """Return the costs of sending, and of receiving, checking and writing, without a broker."""
    append, send = limits.append_gigabytes_per_cpu_second, limits.sendfile_gigabytes_per_cpu_second
    return {
        "produce_cpu_s_per_gb": 1 / append(1 << 30, client_core=arena.client_core),
        "fetch_cpu_s_per_gb": 1 / send(2 << 30, client_core=arena.client_core),
    }


def cases(*, is_quick: bool) -> list[Case]:
    """Return the cells; the quick run has only those of goals."""
    base = Case(WORKLOAD, BASE, Work(Load()), bare=bare_loops, warm_up_rounds=2)
    if is_quick:
        return [base]
    small, large = 60_000_000, 600_000_000
    works = {
        "100 B": Work(Load(record_size_bytes=100, total_bytes=small)),
        "10 KB": Work(Load(record_size_bytes=10 * 1024)),
        "100 KB": Work(Load(record_size_bytes=100 * 1024, total_bytes=large)),
        "10 partitions": Work(Load(partition_count=10)),
        "100 partitions": Work(Load(partition_count=100)),
        "gzip": Work(Load(codec="gzip", total_bytes=small)),
        "snappy": Work(Load(codec="snappy")),
        "lz4": Work(Load(codec="lz4")),
        "zstd": Work(Load(codec="zstd")),
        "acks=all": Work(Load(acks="all")),
        "8 consumers": Work(Load(total_bytes=100_000_000), consumer_count=8),
        "fetches of 1 MB": Work(Load(), fetch_size_bytes=1_000_000),
    }
    # The base's rounds warm up the servers.
    return [base] + [Case(WORKLOAD, n, w, warm_up_rounds=0) for n, w in works.items()]
