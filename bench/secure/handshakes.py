"""Measures a client that is there while others connect, each with a certificate."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.peers.arena import Arena
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.secure import connecting
from bench.secure.servers import Tls, TlsTidelog

WORKLOAD = "handshakes"
RATES = (200, 500, 1_000, 1_200)
_PROCESSES = 4
_SECONDS = 10.0
_PACE_SECONDS = 0.005
_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # ApiVersions


def cases(tls: Tls) -> list[Case]:
    """Return a cell for each rate."""
    return [
        Case(WORKLOAD, name_of(rate), _Work(tls, rate), warm_up_rounds=0, peers=("tidelog",))
        for rate in RATES
    ]


def name_of(rate: int) -> str:
    """Return the name of the cell with this rate."""
    return f"{rate:,} a second asked for"


class _Work:
    def __init__(self, tls: Tls, rate: int) -> None:
        self._tls = tls
        self._rate = rate

    def __call__(self, arena: Arena, peer: Peer) -> Mapping[str, float]:
        assert isinstance(peer, TlsTidelog)
        node = arena.node(peer)
        tls = self._tls
        command = [
            *(sys.executable, "-m", connecting.__name__, str(peer.tls_port)),
            *(str(tls.client_pem), str(self._rate / _PROCESSES), str(_SECONDS)),
        ]
        context = tls.authority.client_context(tls.client_pem)
        with (
            arena.stopped_except(peer),
            socket.create_connection(("127.0.0.1", peer.tls_port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            quiet = _latencies(client, 2.0)
            cpu_before = node.cpu_seconds()
            others = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                for _ in range(_PROCESSES)
            ]
            time.sleep(0.5)  # until they have begun
            busy = _latencies(client, _SECONDS - 1)
            counts = [int(other.communicate()[0]) for other in others]
            cpu = node.cpu_seconds() - cpu_before
        return {
            "handshakes_per_s": sum(counts) / _SECONDS,
            "cpu_ms_per_handshake": cpu / sum(counts) * 1000,
            "quiet_p99_ms": _percentile(quiet, 99),
            "p50_ms": _percentile(busy, 50),
            "p99_ms": _percentile(busy, 99),
        }


def _latencies(client: ssl.SSLSocket, seconds: float) -> list[float]:
    """Return how long answers take, ms, sorted; late requests count from when they were due."""
    began, found = time.monotonic(), []
    due = began
    while due < began + seconds:
        if (ahead := due - time.monotonic()) > 0:
            time.sleep(ahead)
        client.sendall(_REQUEST)
        if not client.recv(65_536):
            raise ConnectionResetError("the node has closed the connection")
        found.append((time.monotonic() - due) * 1000)
        due += _PACE_SECONDS
    return sorted(found)


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
