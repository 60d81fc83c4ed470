"""Chains in the stores of one machine; ``tests/aws/test_chains_s3.py`` has S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.contracts.chain_store import ChainStoreContract


class TestMemoryChains(ChainStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore()


class TestFolderChains(ChainStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_object_store(f"file://{tmp_path}/objects", may_be_new=True)
