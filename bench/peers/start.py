"""Measures the time from a start to the first acknowledged record, and an idle server."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.peers import topics
from bench.peers.arena import Arena
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.process import Node

WORKLOAD = "start"
NAME = "empty"
_SETTLING_SECONDS = 3.0
_IDLE_SECONDS = 3.0


def cases() -> list[Case]:
    """Return the only cell; every round starts each peer again, so no server is warm."""
    return [Case(WORKLOAD, NAME, _run, warm_up_rounds=0)]


def _run(arena: Arena, peer: Peer) -> Mapping[str, float]:
    folder = arena.fresh_folder(peer)
    with arena.started(peer, folder) as node:
        topics.create_topic(node, peer, "first", 1)
        first_record_s = topics.produce_until_acknowledged(node, "first")
        first_record_cpu_s = node.cpu_seconds()
        return {
            "first_record_s": first_record_s,
            "first_record_cpu_s": first_record_cpu_s,
            **idle_figures(node),
        }


def idle_figures(node: Node) -> dict[str, float]:
    """Return memory and CPU time of a settled server without requests."""
    time.sleep(_SETTLING_SECONDS)
    cpu_before, started = node.cpu_seconds(), time.perf_counter()
    time.sleep(_IDLE_SECONDS)
    cpu = node.cpu_seconds() - cpu_before
    return {
        "idle_memory_mb": node.resident_megabytes(),
        "idle_cpu_ms_per_s": cpu / (time.perf_counter() - started) * 1000,
    }
