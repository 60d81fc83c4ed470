"""Measures small produce requests: one record of 100 bytes, five requests in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.peers import topics
from bench.peers.arena import Arena
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.small_requests import send_small_requests

WORKLOAD = "small requests"
NAME = "100 B, 5 in flight"
_COUNT = 20_000


def _run(arena: Arena, peer: Peer) -> Mapping[str, float]:
    node = arena.node(peer)
    with topics.fresh_topic(node, peer) as topic:
        cpu_before, started = node.cpu_seconds(), time.perf_counter()
        send_small_requests(("127.0.0.1", node.port), topic, _COUNT)
        wall, cpu = time.perf_counter() - started, node.cpu_seconds() - cpu_before
    return {"requests_per_s": _COUNT / wall, "requests_per_cpu_s": _COUNT / cpu}


def cases() -> list[Case]:
    """Return the only cell."""
    # A virtual machine compiles for some 50,000 requests: Kafka's first 20,000 cost four times as
    # much as later ones.
    return [Case(WORKLOAD, NAME, _run, warm_up_rounds=3)]
