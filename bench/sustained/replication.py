"""Measures what three replicas cost with acks=all, and one replica on the same servers.

Large batches in one partition, from librdkafka. The cost of replication itself is what three
replicas cost more than one; ``bare_loops`` has its bar. Before each measurement the memory that the
logs will take is touched, so that none of it waits for the hypervisor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic

from bench.free_memory import touch_free_memory
from bench.peers import clients
from bench.peers.arena import Arena
from bench.peers.clients import Load
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.peers.throughput import measured
from bench.process import Node
from bench.sustained import bare_loops
from bench.sustained.trios import COUNT
from tests.support.waiting import eventually

WORKLOAD = "replication"
NAME = "1 KB, acks=all, three servers"
THREE, ITSELF, TIMES = "produce_cpu_s_per_gb", "replication_cpu_s_per_gb", "times_one_replica"
_TOUCHED_TIMES = 2 * COUNT  # the load: the logs, and as much for buffers and for what others take
_numbers = itertools.count()


def cases(total_bytes: int) -> list[Case]:
    """Return the only cell: a load of so many bytes, and bare loops of as many."""
    run = _Work(Load(acks="all", total_bytes=total_bytes))
    return [Case(WORKLOAD, NAME, run, bare=partial(_bare, total_bytes), warm_up_rounds=2)]


@dataclass(frozen=True, slots=True)
class _Work:
    load: Load

    def __call__(self, arena: Arena, peer: Peer) -> Mapping[str, float]:
        node = arena.node(peer)
        one = self._produced(node, peer, replica_count=1)
        three = self._produced(node, peer, replica_count=COUNT)
        return {
            **three,
            "one_replica_cpu_s_per_gb": one[THREE],
            ITSELF: three[THREE] - one[THREE],
            TIMES: three[THREE] / one[THREE],
        }

    def _produced(self, node: Node, peer: Peer, *, replica_count: int) -> dict[str, float]:
        with _fresh_topic(node, peer, replica_count) as topic:
            produce = partial(clients.produce, node, topic, self.load)
            touch_free_memory(_TOUCHED_TIMES * self.load.total_bytes)
            return measured("produce", node, self.load.size_bytes, produce)


def _bare(total_bytes: int, arena: Arena) -> Mapping[str, float]:
    touch_free_memory(_TOUCHED_TIMES * total_bytes)
    append, itself = bare_loops.measure(
        total_bytes // bare_loops.BATCH_SIZE_BYTES,
        follower_count=COUNT - 1,
        client_core=arena.client_core,
    )
    return {
        THREE: append + itself,
        "one_replica_cpu_s_per_gb": append,
        ITSELF: itself,
        TIMES: (append + itself) / append,
    }


@contextmanager
def _fresh_topic(node: Node, peer: Peer, replica_count: int) -> Iterator[str]:
    """Create a topic whose replicas are all in sync; delete it at the end."""
    name = f"replicated-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    new = NewTopic(name, 1, replica_count, config=dict(peer.topic_config))
    admin.create_topics([new])[name].result(60)
    try:
        eventually(lambda: _has_all(admin, name, replica_count), f"{name} has its replicas")
        yield name
    finally:
        admin.delete_topics([name])[name].result(60)


def _has_all(admin: AdminClient, name: str, replica_count: int) -> bool:
    partition = admin.list_topics(name, timeout=60).topics[name].partitions.get(0)
    if partition is None or partition.leader < 0:
        return False
    return len(partition.isrs) == replica_count
