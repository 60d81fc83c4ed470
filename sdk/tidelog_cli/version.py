"""``tidelog --version``: the facts that a report of a bug begins with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

COMPILED_PACKAGE = "tidelog_core.records.header"  # one of those that ``tools/compiled.py`` lists
DISTRIBUTION = "tidelog"
UNKNOWN_VERSION = "of a source tree"


def version_of_tidelog() -> str:
    """Return the version of the installed distribution."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN_VERSION


def is_compiled() -> bool:
    """Return whether the hot path runs as compiled modules."""
    spec = find_spec(COMPILED_PACKAGE)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def version_line() -> str:
    """Return one line: version, Python, platform, and whether the hot path is compiled."""
    compiled = "compiled" if is_compiled() else "not compiled"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}"
    return f"tidelog {version_of_tidelog()}, {python}, {machine}, {compiled}"
