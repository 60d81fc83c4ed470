"""Measures partitions: creating them, memory, metadata, and a start after a clean stop.

Each has one record. A restart is measured until the last partition accepts another record
(`restart_first_record_s`), and until all have answered a fetch (`restart_all_s`, which includes
the client's time for the single fetches).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench.peers import topics
from bench.peers.arena import Arena
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.peers.start import idle_figures

WORKLOAD = "partitions"
COUNTS = (1, 100, 1_000, 10_000)
_METADATA_REQUESTS = 20
_TOPIC_SIZE = 1_000  # Kafka creates no topic of 10,000 partitions in one request


def cases(*, is_quick: bool) -> list[Case]:
    """Return a cell for each count; the quick run has only the goal's."""
    if is_quick:
        return [_case(COUNTS[-1], peers=("tidelog",))]
    return [_case(count) for count in COUNTS]


def name_of(count: int) -> str:
    """Return the name of the cell with this many partitions."""
    return f"{count:,}"


def _case(count: int, *, peers: tuple[str, ...] | None = None) -> Case:
    return Case(
        WORKLOAD, name_of(count), _Work(count), warm_up_rounds=0, repeats_max=1, peers=peers
    )


@dataclass(frozen=True, slots=True)
class _Work:
    count: int

    def __call__(self, arena: Arena, peer: Peer) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        folder = arena.fresh_folder(peer)
        sizes = {
            f"many-{first}": min(_TOPIC_SIZE, self.count - first)
            for first in range(0, self.count, _TOPIC_SIZE)
        }
        last_topic, last_size = list(sizes.items())[-1]
        with arena.started(peer, folder) as node:
            started = time.perf_counter()
            for name, size in sizes.items():
                topics.create_topic(node, peer, name, size)
                topics.produce_until_acknowledged(node, name, size - 1)
            figures["create_s"] = time.perf_counter() - started
            for name, size in sizes.items():
                topics.await_partitions(node, name, size)
                topics.produce_to_each(node, name, size)
            topics.ask_metadata(node, list(sizes), _METADATA_REQUESTS)
            cpu_before, started = node.cpu_seconds(), time.perf_counter()
            topics.ask_metadata(node, list(sizes), _METADATA_REQUESTS)
            cpu, wall = node.cpu_seconds() - cpu_before, time.perf_counter() - started
            figures["metadata_ms"] = wall / _METADATA_REQUESTS * 1000
            figures["metadata_cpu_ms"] = cpu / _METADATA_REQUESTS * 1000
            figures["created_memory_mb"] = node.resident_megabytes()
            stopped = time.perf_counter()
        if not peer.is_durable:
            return figures
        figures["stop_s"] = time.perf_counter() - stopped
        with arena.started(peer, folder) as node:
            last = topics.produce_until_acknowledged(node, last_topic, last_size - 1)
            figures["restart_cpu_s"] = node.cpu_seconds()
            for name, size in sizes.items():
                topics.await_partitions(node, name, size)
            figures["restart_first_record_s"] = last
            figures["restart_all_s"] = time.perf_counter() - node.started_at
            return figures | idle_figures(node)
