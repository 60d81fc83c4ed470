"""``update`` in memory, where each other store runs the same contract with its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_core.metadata.store import MetadataStore

from tests.contracts.metadata_update import MetadataUpdateContract, Open
from tests.support.memory_store import MemoryMetadataStore


class TestUpdateInMemory(MetadataUpdateContract):
    @pytest.fixture
    def open(self) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            yield MemoryMetadataStore(latency=0)

        return open_store
