"""A node's log as JSON, whatever its clients send."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

from tests.support.node_process import NodeProcess

HOSTILE_ID = '"}\n{"level":"ERROR"}\u2028\x00é'.encode()


def test_every_line_of_a_node_and_its_worker_parses(tmp_path: Path) -> None:
    config = {"remote.task.interval.ms": "100"}
    arguments = ("--log-format", "json", "--http-port", "0")
    with NodeProcess(tmp_path / "node", config=config, arguments=arguments) as node:
        for frame in (
            struct.pack(">hhih", 9_999, 0, 1, len(HOSTILE_ID)) + HOSTILE_ID,
            struct.pack(">hhih", 3, 12, 1, len(HOSTILE_ID)) + HOSTILE_ID + b"\xff" * 20,
            b"\n" * 100,
        ):
            with socket.create_connection(("127.0.0.1", node.port), timeout=60) as sock:
                sock.sendall(struct.pack(">i", len(frame)) + frame)
                sock.recv(1_000)
    lines = [json.loads(line) for line in node.log.splitlines()]
    messages = {line["message"] for line in lines}
    assert {"node serves", "connection closed", "node stopped"} <= messages
    assert {line["process"] for line in lines} == {"node-1"}
    closed = next(line for line in lines if line["message"] == "connection closed")
    assert closed["client"].startswith("127.0.0.1:")
