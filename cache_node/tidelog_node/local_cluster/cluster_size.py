"""Lets another process change how many nodes a running ``tidelog up`` has.

The parent listens on a Unix socket in the data directory, which only its user can open. A request
is one line, ``{"nodes": 4, "force": false}``. The answer is a line for each node that has joined or
left, ``{"node": 4, "is_running": true}``, and a last one: ``{"nodes": 4}``, or ``{"error": "…"}``.

Addresses of Unix sockets are short, and data directories may be deep: both sides bind and connect
by the name alone, in the directory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from tidelog_core.errors import TidelogError

logger = logging.getLogger(__name__)

SOCKET = "up.sock"
LINE_BYTES_MAX = 1_000
REQUEST_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 120.0  # a node starts or stops in less

Said = dict[str, object]


class ResizableCluster(Protocol):
    """The nodes of a running ``tidelog up``."""

    def resize(self, count: int, *, force: bool) -> AsyncIterator[tuple[int, bool]]:
        """Start or stop nodes; yield each that has joined (true) or left.

        Raises ``TidelogError`` if a node does not start, for a number that is not allowed, and
        unless ``force`` if partitions would be offline.
        """


class SizeServer:
    """Takes requests for another number of nodes, one at a time. For the parent's loop."""

    def __init__(self, data_dir: Path, cluster: ResizableCluster) -> None:
        self._data_dir = data_dir
        self._cluster = cluster
        self._server: asyncio.Server | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Listen, unless another parent does in this data directory."""
        if _is_served(self._data_dir):
            return
        self._server = await asyncio.start_unix_server(
            self._serve, sock=_bound(self._data_dir), limit=LINE_BYTES_MAX
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            (self._data_dir / SOCKET).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**values: object) -> None:
            writer.write(json.dumps(values).encode() + b"\n")

        try:
            wanted = await _read_request(reader)
            if wanted is None:
                say(error='a request is {"nodes": N}')
                return
            count, force = wanted
            async with self._turn:
                async for number, is_running in self._cluster.resize(count, force=force):
                    say(node=number, is_running=is_running)
                    await writer.drain()
            say(nodes=count)
        except TidelogError as error:
            say(error=str(error))
        except OSError as error:
            logger.info(
                "client that changes the number of nodes has gone", extra={"reason": str(error)}
            )
        finally:
            with suppress(OSError):
                await writer.drain()
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> tuple[int, bool] | None:
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            request = json.loads(await reader.readline())
    except (ValueError, TimeoutError):
        return None
    if not isinstance(request, dict):
        return None
    count, force = request.get("nodes"), request.get("force", False)
    if not isinstance(count, int) or isinstance(count, bool) or not isinstance(force, bool):
        return None
    return count, force


def ask_for_nodes(
    data_dir: Path, count: int, said: Callable[[Said], None], *, force: bool = False
) -> Said:
    """Ask the cluster to run so many nodes; return the last line of the answer.

    ``said`` gets the lines before. ``force``: also if partitions would be offline. Raises
    ``OSError`` if no cluster runs there, or it ends.
    """
    with socket.socket(socket.AF_UNIX) as client:
        with _inside(data_dir):
            client.connect(SOCKET)
        client.settimeout(ANSWER_SECONDS_MAX)
        client.sendall(json.dumps({"nodes": count, "force": force}).encode() + b"\n")
        with client.makefile("rb") as lines:
            for line in lines:
                answer: Said = json.loads(line)
                if "node" not in answer:
                    return answer
                said(answer)
    raise ConnectionResetError("the cluster has ended")


def _bound(data_dir: Path) -> socket.socket:
    """Return a socket that is to listen in the directory."""
    bound = socket.socket(socket.AF_UNIX)
    with _inside(data_dir):
        Path(SOCKET).unlink(missing_ok=True)
        bound.bind(SOCKET)
        Path(SOCKET).chmod(0o600)  # Before it listens: nobody else connects.
    return bound


def _is_served(data_dir: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, _inside(data_dir):
        return client.connect_ex(SOCKET) == 0


@contextmanager
def _inside(directory: Path) -> Iterator[None]:
    """Have the process in the directory for the length of the block, which must not wait."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(directory)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
