"""A node whose wall clock a test can set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.wall_clock import WallClock
from tests.support.node_process import NodeProcess

DAY_SECONDS = 86_400


class ClockedNode:
    """A node and how far its wall clock is off."""

    def __init__(self, folder: Path, *, config: Mapping[str, str], broker_id: int = 1) -> None:
        self.clock = WallClock(folder / f"clock-{broker_id}")
        self.process = NodeProcess(
            folder / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
            config=config,
            environment=self.clock.environment(),
        )
