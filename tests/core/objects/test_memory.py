"""The memory store keeps the contract."""

from __future__ import annotations

import pytest
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.contracts.object_store import ObjectStoreContract


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _fresh(self) -> None:
        self.store = MemoryObjectStore()

    def open_store(self) -> ObjectStore:
        return self.store

    def put_foreign(self, key: str) -> None:
        self.store._objects[key] = (b"?", 0)
