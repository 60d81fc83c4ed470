"""MiniStack: S3, DynamoDB and more of AWS in one process, for tests only.

It pins its own botocore, hence a virtual environment of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, run

VERSION = "1.5.33"
START_TIMEOUT = 60.0  # seconds
_VENV = TOOLS_DIR / "ministack-venv"
_PROGRAM = _VENV / "bin" / "ministack"
_STAMP = _VENV / f".ministack-{VERSION}"


def install() -> None:
    """Make ``serve`` work."""
    if _STAMP.exists():
        return
    run([sys.executable, "-m", "venv", "--clear", _VENV])
    pip = _VENV / "bin" / "pip"
    options = ["--quiet", "--disable-pip-version-check"]
    run([pip, "install", *options, f"ministack=={VERSION}"])
    _STAMP.touch()


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Run an empty server that keeps its files under ``directory``; give its URL.

    Raises ``ToolAbsent``.
    """
    if not _STAMP.exists():
        raise ToolAbsent("MiniStack is not installed: run `make tools`")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
    }
    with (directory / "ministack.log").open("wb") as log:
        process = subprocess.Popen(
            [_PROGRAM], cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await_answer(url, process, directory / "ministack.log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            words = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"MiniStack ended with exit code {process.returncode}: {words}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()  # Any answer will do.
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"MiniStack did not answer within {START_TIMEOUT} s")
