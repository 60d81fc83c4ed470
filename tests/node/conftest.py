"""Nodes for the tests of the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.node_process import NodeProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A running node of this test's own."""
    process = NodeProcess(tmp_path / "node")
    process.start()
    yield process
    if process.process is not None:
        process.stop()


@pytest.fixture
def disk_folder() -> Iterator[Path]:
    """A folder on a disk; ``tmp_path`` may be in memory."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)
