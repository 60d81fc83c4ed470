"""A topic is not to be diskless in a store that would lose its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.objects.memory import MemoryObjectStore

from tests.support.admin_calls import Api, new_cluster

DISKLESS = {"diskless.enable": "true", "remote.storage.enable": "true"}


class Overwriting(MemoryObjectStore):
    """A store that takes no notice of If-None-Match."""

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await self.replace(key, data)


def alter(api: Api, value: str) -> int:
    one = {"name": "diskless.enable", "operation": "set", "value": value}
    return api("PATCH", "/topics/t/configs", {"alterations": [one]}).status


@pytest.fixture
def overwriting(api: Api) -> Api:
    api.cluster._objects = Overwriting()
    return api


@pytest.fixture
def by_default(tmp_path: Path) -> Iterator[Api]:
    with new_cluster(tmp_path, node_config=NodeConfig(log_diskless_enable=True)) as api:
        yield api


def test_a_store_that_writes_over_objects_is_named(overwriting: Api) -> None:
    api = overwriting
    body = {"name": "d", "configs": DISKLESS}
    refused = api("POST", "/topics", body)
    assert refused.problem == (422, "INVALID_CONFIG")
    assert "writes over an object" in refused.body["detail"]
    api.done("POST", "/topics", {"name": "t", "configs": {"remote.storage.enable": "true"}})
    assert alter(api, "true") == 422
    assert alter(api, "false") == 200
    topics = api.done("GET", "/topics")["topics"]
    assert [topic["name"] for topic in topics] == ["t"]


def test_also_if_new_topics_are_diskless_by_default(by_default: Api) -> None:
    by_default.cluster._objects = Overwriting()
    configs = {"remote.storage.enable": "true"}
    assert by_default("POST", "/topics", {"name": "d", "configs": configs}).status == 422
    configs["diskless.enable"] = "false"
    by_default.done("POST", "/topics", {"name": "r", "configs": configs})


def test_another_store_is_left_without_a_trace(api: Api) -> None:
    store = api.cluster._objects = MemoryObjectStore()
    api.done("POST", "/topics", {"name": "t", "configs": DISKLESS})
    assert alter(api, "true") == 200

    async def keys() -> list[str]:
        return [meta.key async for meta in store.list("")]

    assert api.runner.run(keys()) == []
