"""A real node process on a free port.

    with NodeProcess(tmp_path) as node:
        producer = Producer({"bootstrap.servers": node.address})

``kill`` is ``kill -9``, ``stop`` is SIGTERM; ``start`` after either brings the same node
back on the same port, with the same data.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tidelog_node.settings import HTTP_ON

from tests.support.waiting import eventually
from tools.kernel_machine import EMULATED
from tools.ports import free_port

# On a busy machine, and in one that is emulated (``make test-ktls``).
READY_SECONDS_MAX = 600.0 if os.environ.get(EMULATED) else 180.0
STOP_SECONDS_MAX = 90.0


class NodeProcess:
    """One node with a data directory and a port of its own; started by ``start`` or ``with``."""

    def __init__(
        self,
        data_dir: Path,
        *,
        broker_id: int = 1,
        port: int | None = None,
        metadata_store: str | None = None,
        object_store: str | None = None,
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.data_dir = data_dir
        self.broker_id = broker_id
        self.port = free_port() if port is None else port
        self.metadata_store = metadata_store
        self.object_store = object_store
        self.config = {"group.initial.rebalance.delay.ms": "0", **(config or {})}
        self.environment = dict(environment or {})
        self.arguments = arguments
        self.http_address = ""  # host:port, once it is ready; "" without ``--http-port``
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = data_dir.parent / f"{data_dir.name}-node-{broker_id}.log"

    @property
    def address(self) -> str:
        """``host:port``, as clients want it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        assert self.process is not None, "the node is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """The node's log so far, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_logged(self, text: str) -> None:
        """Return once the log has the text; a thread writes it, behind what is logged."""
        eventually(lambda: text in self.log, lambda: f"{text!r} is logged:\n{self.log[-3000:]}")

    def start(self) -> NodeProcess:
        """Start the process and wait until it serves."""
        self.spawn()
        return self.wait_ready()

    def spawn(self) -> None:
        """Start the process; ``wait_ready`` is yet to be called."""
        assert self.process is None, "the node runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def wait_ready(self) -> NodeProcess:
        """Wait until the process serves; one that does not is killed."""
        try:
            self._read_ready_line()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kill the process as a crash would; nothing is flushed or closed."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the process in order and return its exit status."""
        return self._signal(signal.SIGTERM)

    def cpu_seconds(self) -> float:
        """Return the CPU time, user and system, that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> dict[Path, str]:
        """Return the target of each descriptor that the process has open, by its path in /proc."""
        found: dict[Path, str] = {}
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # It was closed after it was listed.
                found[descriptor] = str(descriptor.readlink())
        return found

    def __enter__(self) -> NodeProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.stop()

    def command(self) -> list[str]:
        """Return the command line that starts the node."""
        command = [sys.executable, "-m", "tidelog_node"]
        command += ["--broker-id", str(self.broker_id), "--data-dir", str(self.data_dir)]
        if "listeners" not in self.config:
            command += ["--host", "127.0.0.1", "--port", str(self.port)]
        if self.metadata_store is not None:
            command += ["--metadata-store", self.metadata_store]
        if self.object_store is not None:
            command += ["--object-store", self.object_store]
        for name, value in self.config.items():
            command += ["--set", f"{name}={value}"]
        return [*command, *self.arguments]

    def _read_ready_line(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        line = b""
        # ``select`` refuses descriptors above 1023, and a run of chaos has more.
        output = select.poll()
        output.register(self.process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if not output.poll(max(left, 0) * 1000):
                raise TimeoutError(f"node not ready after {READY_SECONDS_MAX} s:\n{self.log}")
            part = os.read(self.process.stdout.fileno(), 4096)
            if not part:
                raise RuntimeError(f"node ended before it was ready:\n{self.log}")
            line += part
        self.http_address = line.decode().strip().partition(HTTP_ON)[2]

    def _signal(self, number: int) -> int:
        process, self.process = self.process, None
        assert process is not None, "the node is not running"
        assert process.stdout is not None
        process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
