"""The object store in a folder, for the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectStore

from tests.contracts.object_store import ObjectStoreContract


class FolderObjectsContract(ObjectStoreContract):
    """The contract in a folder that is not there yet."""

    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "not" / "there" / "yet"

    def open_store(self) -> ObjectStore:
        return FolderObjectStore(self.folder)

    def put_foreign(self, key: str) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
