"""franz-go from Go's module proxy, in a small program that the tests drive."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from tools.places import ROOT, TOOLS_DIR, require, run

SOURCE = ROOT / "tests" / "support" / "drivers" / "franz_go"
_ROOT = TOOLS_DIR / "franz-go"


def install() -> None:
    """Make ``command`` work. Raises ``ToolAbsent``."""
    if command() is not None:
        return
    go = require("go")
    _ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_ROOT) as folder:
        # Its own caches, which go again: nothing stays in the user's. No other Go is downloaded.
        environment = {
            **os.environ,
            "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
            "GOTOOLCHAIN": "local",
            "GOMODCACHE": f"{folder}/modules",
            "GOCACHE": f"{folder}/build",
            "CGO_ENABLED": "0",
        }
        built = Path(folder, "driver")
        run([go, "build", "-trimpath", "-o", built, "."], cwd=SOURCE, environment=environment)
        built.rename(_program())


def command() -> Path | None:
    """Return the program, or ``None`` if it has not been built from this source."""
    program = _program()
    return program if program.exists() else None


def _program() -> Path:
    source = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    return _ROOT / f"driver-{hashlib.sha256(source).hexdigest()[:16]}"
