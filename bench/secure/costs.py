"""Measures produce and fetch through TLS, and with ACLs and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from bench.peers import clients, requests, topics
from bench.peers.arena import Arena
from bench.peers.clients import Load
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.peers.throughput import measured
from bench.secure.servers import Tls, TlsKafka, TlsTidelog

TLS, RULES = "tls", "rules"
ENCRYPTED, PLAIN, BULK = "1 KB records, TLS 1.3", "1 KB records, plain", "1 KB records"
OPEN = "open"
_LOAD = Load()
_FETCH_PASSES = 2


def cases(tls: Tls) -> list[Case]:
    """Return the cells of both workloads."""
    small = requests.cases()[0]
    return [
        Case(RULES, small.name, small.run, warm_up_rounds=3, peers=("tidelog", OPEN)),
        Case(RULES, BULK, _bulk, warm_up_rounds=1, peers=("tidelog", OPEN)),
        Case(TLS, PLAIN, _bulk, warm_up_rounds=2, peers=("tidelog", "kafka")),
        Case(TLS, ENCRYPTED, partial(_encrypted, tls), warm_up_rounds=2),
    ]


def _encrypted(tls: Tls, arena: Arena, peer: Peer) -> Mapping[str, float]:
    assert isinstance(peer, TlsTidelog | TlsKafka)
    return _bulk(arena, peer, tls)


def _bulk(arena: Arena, peer: Peer, tls: Tls | None = None) -> Mapping[str, float]:
    node = arena.node(peer)
    client = node
    if tls is not None:
        assert isinstance(peer, TlsTidelog | TlsKafka)
        client = tls.of(node, peer.tls_port)

    def fetch(topic: str) -> None:
        for _ in range(_FETCH_PASSES):
            clients.fetch(client, topic, _LOAD)

    with topics.fresh_topic(node, peer) as topic:
        produce = partial(clients.produce, client, topic, _LOAD)
        return {
            **measured("produce", node, _LOAD.size_bytes, produce),
            **measured("fetch", node, _LOAD.size_bytes * _FETCH_PASSES, partial(fetch, topic)),
        }
