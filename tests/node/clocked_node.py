"""A node whose wall clock a test can set."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.cluster import CLOCK_DIR
from tests.support.node_process import NodeProcess

DAY_NS = 86_400 * 10**9


class ClockedNode:
    """A node and how far its wall clock is off."""

    def __init__(self, folder: Path, *, config: Mapping[str, str], broker_id: int = 1) -> None:
        self._clock = folder / f"clock-{broker_id}"
        self._clock.write_bytes(bytes(8))
        path = os.pathsep.join(filter(None, (str(CLOCK_DIR), os.environ.get("PYTHONPATH"))))
        self.process = NodeProcess(
            folder / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
            config=config,
            environment={"PYTHONPATH": path, "TIDELOG_CHAOS_CLOCK": str(self._clock)},
        )

    def jump(self, ns: int) -> None:
        with self._clock.open("r+b") as file:
            file.write(struct.pack("<q", ns))
