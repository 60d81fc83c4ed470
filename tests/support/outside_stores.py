"""A node whose data directory a test may delete: its stores are outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.node_process import NodeProcess


@contextmanager
def node_with_outside_stores(folder: Path, config: Mapping[str, str]) -> Iterator[NodeProcess]:
    """Run a node with a database and an object store beside its data directory.

    The test may end the node, and start it again.
    """
    process = NodeProcess(
        folder / "node",
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=f"file://{folder}/objects",
        config=dict(config),
    )
    process.start()
    yield process
    if process.process is not None:
        process.stop()
