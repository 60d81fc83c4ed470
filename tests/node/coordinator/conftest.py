"""What several tests of the coordinator are given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.coordinator.wire import Wire, open_wire


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with open_wire(tmp_path) as wire:
        yield wire
