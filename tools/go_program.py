"""Small programs of ours around a Go library, built with modules from Go's proxy."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.places import TOOLS_DIR, require, run


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A folder with a ``main`` package, and the library that it is about."""

    name: str  # of its folder among the tools
    source: Path
    library: str  # the module's path

    @property
    def version(self) -> str:
        """The version of the library, without its ``v``."""
        text = (self.source / "go.mod").read_text()
        (version,) = re.findall(rf"{re.escape(self.library)} v(\S+)", text)
        return str(version)

    def install(self) -> None:
        """Make ``command`` work. Raises ``ToolAbsent``."""
        if self.command() is not None:
            return
        go = require("go")
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            # Its own caches, which go again: nothing stays in the user's. No other Go comes.
            environment = {
                **os.environ,
                "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
                "GOTOOLCHAIN": "local",
                "GOMODCACHE": f"{folder}/modules",
                "GOCACHE": f"{folder}/build",
                "CGO_ENABLED": "0",
            }
            built = Path(folder, "driver")
            command = [go, "build", "-trimpath", "-o", str(built), "."]
            run(command, cwd=self.source, environment=environment)
            built.rename(self._program)

    def command(self) -> Path | None:
        """Return the program, or ``None`` if it has not been built from this source."""
        return self._program if self._program.exists() else None

    @property
    def _root(self) -> Path:
        return TOOLS_DIR / self.name

    @property
    def _program(self) -> Path:
        source = b"".join(path.read_bytes() for path in sorted(self.source.iterdir()))
        return self._root / f"driver-{hashlib.sha256(source).hexdigest()[:16]}"
