"""Measures fetches of records that are only on the disk, not in the page cache.

`bench.cold_reads` measures reads from the object store; Apache Kafka and Tansu have none here.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.peers import clients, topics
from bench.peers.arena import Arena
from bench.peers.clients import Load
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.peers.throughput import measured
from tests.support.cold_files import forget_pages

WORKLOAD = "cold reads"
NAME = "1 KB, from disk"
_LOAD = Load()


def cases() -> list[Case]:
    """Return the only cell."""
    return [Case(WORKLOAD, NAME, _run, bare=_bare)]


def _run(arena: Arena, peer: Peer) -> Mapping[str, float]:
    if not peer.is_durable:
        raise RuntimeError(f"{peer.name} keeps its records in memory only")
    node = arena.node(peer)
    with topics.fresh_topic(node, peer) as topic:
        clients.produce(node, topic, _LOAD)
        for log in arena.folder(peer).rglob("*.log"):
            forget_pages(log)
        fetch = lambda: clients.fetch(node, topic, _LOAD)  # noqa: E731
        return measured("fetch", node, _LOAD.size_bytes, fetch)


def _bare(_: Arena) -> Mapping[str, float]:
    """Read a file of the same size from the disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        path.write_bytes(os.urandom(_LOAD.size_bytes))
        forget_pages(path)
        started, cpu_before = time.perf_counter(), time.thread_time()
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        wall, cpu = time.perf_counter() - started, time.thread_time() - cpu_before
    return {
        "fetch_mb_per_s": _LOAD.size_bytes / wall / 1e6,
        "fetch_cpu_s_per_gb": cpu / _LOAD.size_bytes * 1e9,
    }
