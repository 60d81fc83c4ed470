"""kafka-python with its own integration tests, from the source distribution on PyPI."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tools.places import TOOLS_DIR, require, run

VERSION = "3.0.12"  # also of the client that our own tests use
_ROOT = TOOLS_DIR / f"kafka-python-suite-{VERSION}"
_SOURCE = _ROOT / f"kafka_python-{VERSION}"
# The distribution lacks a module that the tests import. With a broker that somebody else has
# started, they call one method of it.
_SERVICE = '''"""Not of kafka-python: what its tests of a running broker need of its module."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass


class SpawnedService:
    pass
'''

_STARTS = "it starts a broker of Kafka's distribution"
# Tests that fail, and why.
LEFT_OUT: Mapping[str, str] = {
    "test_describe_metadata_quorum": "a cluster of nodes has no quorum of controllers",
    "test_ssl_handshake": _STARTS,
    "test_legacy_kafka_client_ssl": _STARTS,
}


def install() -> None:
    """Make ``folder`` work. Raises ``ToolAbsent``."""
    if folder() is not None:
        return
    _ROOT.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-binary", ":all:", "--dest", str(_ROOT)]
    run([*pip, f"kafka-python=={VERSION}"])
    (archive,) = _ROOT.glob("*.tar.gz")
    run([require("tar"), "xzf", archive], cwd=_ROOT)
    (_SOURCE / "test" / "__init__.py").touch()  # else Python's own ``test`` is imported
    (_SOURCE / "test" / "service.py").write_text(_SERVICE)


def folder() -> Path | None:
    """Return the folder to run the tests in, or ``None`` if they are missing."""
    return _SOURCE if (_SOURCE / "test" / "service.py").exists() else None
