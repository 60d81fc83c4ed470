"""Programs of Kafka's world run on a node that is killed in the middle: ``make test-ecosystem``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import NodeProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node to be killed."""
    process = NodeProcess(
        tmp_path / "node",
        config={"default.replication.factor": "1", "num.partitions": "3"},
    ).start()
    yield process
    if process.process is not None:
        process.stop()
