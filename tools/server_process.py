"""Runs a server as a child process, from its readiness to an orderly end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS_MAX = 120.0  # Kafka with 10,000 partitions takes more than 30
_RETRY_SECONDS = 0.005
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server on 127.0.0.1."""

    pid: int
    port: int
    started_at: float  # time.perf_counter when the process was started


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_running(pid: int, module: str) -> list[int]:
    """Return the process's children that run the module; some may have ended since."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # It has ended just now.
            if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found.append(int(child))
    return found


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def answers_http(port: int) -> bool:
    """Return whether a server answers HTTP requests on the port, if only with an error."""
    return _answers(f"http://127.0.0.1:{port}")


def answers_https(port: int) -> bool:
    """Return the same for HTTPS, by any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _answers(f"https://127.0.0.1:{port}", context)


def _answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5, context=context).close()
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, urllib.error.URLError):
        return False
    return True


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    *,
    port: int,
    start_seconds_max: float,
    log_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    serves: Callable[[int], bool] = is_listening,
    stop_seconds_max: float = STOP_SECONDS_MAX,
) -> Iterator[ServerProcess]:
    """Run a command that serves on the port; end it at the end of the block.

    Its output is appended to ``log_path``. It is stopped by SIGTERM, and killed if it runs for
    ``stop_seconds_max`` longer. It is also killed if this process ends. Raises ``RuntimeError``
    if it ends before it serves, or does not serve within ``start_seconds_max``.
    """
    with nullcontext() if log_path is None else log_path.open("ab") as log:
        started_at = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 — it only makes one system call
        )
    try:
        await_serving(name, process, port, start_seconds_max, log_path=log_path, serves=serves)
        yield ServerProcess(process.pid, port, started_at)
    finally:
        process.terminate()
        try:
            process.wait(stop_seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_serving(
    name: str,
    process: subprocess.Popen[bytes],
    port: int,
    seconds_max: float,
    *,
    log_path: Path | None = None,
    serves: Callable[[int], bool] = is_listening,
) -> None:
    """Return once the process serves on the port.

    Raises ``RuntimeError`` if the process ends (with the end of its log) or takes too long.
    """
    deadline = time.perf_counter() + seconds_max
    while not serves(port):
        if process.poll() is not None:
            words = log_path.read_text(errors="replace")[-2000:] if log_path else ""
            raise RuntimeError(f"{name} ended with exit code {process.returncode}: {words}")
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{name} did not serve within {seconds_max} s")
        time.sleep(_RETRY_SECONDS)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent ended before the call
        os._exit(1)
