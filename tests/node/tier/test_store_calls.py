"""The worker's object store keeps the contract for the node that asks through messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import TidelogError
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_node.tier import store_calls
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import (
    Fields,
    ProtocolError,
    Request,
    StoreRequest,
    error_from_fields,
    error_to_fields,
    request_from_fields,
    request_to_fields,
)
from tidelog_node.tier.store_calls import call_store
from tidelog_node.tier.worker_command import WorkerCommand

from tests.contracts.folder_objects import FolderObjectsContract
from tests.support.worker_messages import as_received


class DirectClient(TierClient):
    """Says to a store in this process what it would say to the worker."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            WorkerCommand(
                socket=Path("tier.sock"),
                objects=str(folder),
                cache_dir=folder,
                node_config=NodeConfig(),
            )
        )
        self._objects = FolderObjectStore(folder)

    async def call(self, request: Request) -> Fields:
        request = request_from_fields(json.loads(json.dumps(request_to_fields(request))))
        assert isinstance(request, StoreRequest)
        try:
            answer = await call_store(self._objects, request)
        except TidelogError as error:
            raise error_from_fields(json.loads(json.dumps(error_to_fields(error)))) from None
        return await as_received(answer)

    async def close(self) -> None:
        await self._objects.close()


class TestTierClient(FolderObjectsContract):
    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have a few objects make several pages."""
        monkeypatch.setattr(store_calls, "LIST_PAGE_KEYS", 2)
        monkeypatch.setattr("tidelog_node.tier.worker_store.LIST_PAGE_KEYS", 2)
        monkeypatch.setattr("tidelog_node.tier.worker_store.INLINE_BYTES_MAX", 70_000)

    def open_store(self) -> ObjectStore:
        return DirectClient(self.folder)


async def test_a_call_that_no_store_has_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="dance"):
        await call_store(MemoryObjectStore(), StoreRequest("dance", ()))
