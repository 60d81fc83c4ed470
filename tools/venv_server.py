"""Servers from PyPI that pin what the project pins otherwise: a virtual environment each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, run

START_TIMEOUT = 60.0  # seconds
STOP_TIMEOUT = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class VenvServer:
    """One such server: what to install, what to run, how to tell it its port."""

    name: str
    version: str
    requirements: Sequence[str]
    arguments: Sequence[str]  # of the environment's Python
    environment: Mapping[str, str]  # ``{port}`` stands for the port
    as_of: str | None = None  # newer releases of dependencies are left alone; ISO date
    interpreter: Path = Path(sys.executable)  # what the environment is made with
    _root: Path = field(default=TOOLS_DIR)

    @property
    def _venv(self) -> Path:
        return self._root / f"{self.name}-venv"

    @property
    def _stamp(self) -> Path:
        return self._venv / f".installed-{self.version}"

    def install(self) -> None:
        """Make ``serve`` work."""
        if self._stamp.exists():
            return
        run([self.interpreter, "-m", "venv", "--clear", self._venv])
        program = self._venv / "bin"
        run([program / "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
        options = ["--quiet", "--python", str(program / "python")]
        options += ["--exclude-newer", self.as_of] if self.as_of else []
        run([program / "uv", "pip", "install", *options, *self.requirements])
        self._stamp.touch()

    @contextmanager
    def serve(self, directory: Path) -> Iterator[str]:
        """Run an empty server that keeps its files under ``directory``; give its URL.

        Raises ``ToolAbsent``.
        """
        if not self._stamp.exists():
            raise ToolAbsent(f"{self.name} is not installed: run `make tools`")
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(directory),
            "TMPDIR": str(directory),
            **{name: value.format(port=port) for name, value in self.environment.items()},
        }
        log_path = directory / f"{self.name}.log"
        command = [str(self._venv / "bin" / "python"), *self.arguments]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._await_answer(url, process, log_path)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _await_answer(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if process.poll() is not None:
                words = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} ended with {process.returncode}: {words}")
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()  # Any answer will do.
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"{self.name} did not answer within {START_TIMEOUT} s")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
