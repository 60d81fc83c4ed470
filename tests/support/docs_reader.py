"""The reader script of the format's documentation, loaded from its file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPT = Path(__file__).parents[2] / "docs" / "read_segments.py"


def load() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("read_segments", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reader = load()


def read_all(
    location: str | Path, tell: Callable[[str], object] | None = None, *, committed: bool = True
) -> dict[tuple[str, int], list[Any]]:
    """Return each partition's records, by the topic's folder and the partition's number."""
    found, get = reader.open_bucket(str(location))
    partitions = reader.read_bucket(found, get, tell or _fail)
    starts = reader.log_starts(found)
    return {
        name: list(reader.read_records(segments, get, starts[name], committed=committed))
        for name, segments in partitions.items()
    }


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the script without anything of the project on its path."""
    command = [sys.executable, "-E", "-P", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/bin"}
    )


def only(values: Iterable[Any]) -> Any:
    """Return the only value."""
    (value,) = values
    return value


def _fail(problem: str) -> None:
    raise AssertionError(problem)
