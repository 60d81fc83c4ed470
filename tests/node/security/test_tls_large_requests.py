"""Large requests over TLS arrive however their bytes are cut, though the node waits for many."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
from tidelog_core.config import ListenerConfig
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import RECORD_BYTES_MAX
from tidelog_node.low_water_mark import LOW_WATER_BYTES_MAX

from tests.node.security.tls_server import tls_server
from tests.support.certificates import Authority

SEEDS = range(6)
REQUESTS = 12
SECONDS_MAX = 60.0


def send_cut(port: int, context: ssl.SSLContext, seed: int) -> int:
    """Send requests, encrypted and cut anywhere; return how many were answered."""
    rng = random.Random(seed)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    answered = 0
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def read() -> bytes:
            while True:
                try:
                    return tls.read(65_536)
                except ssl.SSLWantReadError:
                    incoming.write(sock.recv(65_536))

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65_536))
        for _ in range(REQUESTS):
            marks = rng.choice((1, 2, 3)) * LOW_WATER_BYTES_MAX
            size = marks + rng.randrange(3 * RECORD_BYTES_MAX)
            tls.write(struct.pack(">i", size) + bytes(size))
            data = outgoing.read()
            cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(12)))
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                sock.sendall(data[start:end])
                # So that the node has taken what has come, a part of a record at its end.
                time.sleep(rng.choice((0, 0.001, 0.005)))
            assert read()
            answered += 1
    return answered


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_request_is_answered(seed: int, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = ListenerConfig(ssl_keystore_location=str(authority.node_pem()))
    context = authority.client_context()
    async with tls_server(config) as (_, port), asyncio.timeout(SECONDS_MAX):
        assert await asyncio.to_thread(send_cut, port, context, seed) == REQUESTS


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("seed", SEEDS[:3])
async def test_every_request_is_answered_with_kernel_tls(
    seed: int, version: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    config = ListenerConfig(ssl_keystore_location=str(authority.node_pem()), ssl_ktls_enable=True)
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion[version]
    with contextlib.closing(ReadWatch()) as watch:
        async with tls_server(config, watch=watch) as (_, port), asyncio.timeout(SECONDS_MAX):
            assert await asyncio.to_thread(send_cut, port, context, seed) == REQUESTS
