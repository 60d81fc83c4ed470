"""Ids of topics that a client makes up cost one read of the store a request, not one each."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import uuid4

import pytest
from kio.index import load_request_schema
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.security.authorization import Authorizer
from tidelog_node.authorization.access import Access
from tidelog_node.authorization.guarded_routes import guard_routes
from tidelog_node.requests.routes import Route

from tests.support.kafka_messages import entity
from tests.support.request_contexts import context_of

ID_COUNT = 50
OFFSET_COMMIT, OFFSET_FETCH, DELETE_TOPICS = (8, 10), (9, 10), (20, 6)


class CountingView:
    """An empty cluster that counts how often it is read."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.read_count = 0

    async def refresh(self) -> ClusterImage:
        self.read_count += 1
        return self.image


def ids(**fields: object) -> list[dict[str, object]]:
    return [{"topic_id": uuid4(), **fields} for _ in range(ID_COUNT)]


def group(number: int) -> dict[str, object]:
    topics = ids(partition_indexes=[0])
    return {"group_id": f"g-{number}", "member_id": None, "member_epoch": -1, "topics": topics}


REQUESTS: dict[tuple[int, int], dict[str, Any]] = {
    OFFSET_COMMIT: {"group_id": "g", "member_id": "", "topics": ids(partitions=[])},
    OFFSET_FETCH: {"groups": [group(number) for number in range(5)], "require_stable": False},
    DELETE_TOPICS: {"topics": ids(name=None)},
}


@pytest.mark.parametrize("api", REQUESTS)
def test_the_store_is_read_once_for_a_request(api: tuple[int, int]) -> None:
    api_key, version = api
    view = CountingView()
    given_view = cast("ClusterView", view)
    everyone = Authorizer(frozenset({"User:ANONYMOUS"}))
    reached: list[Any] = []

    async def handle(request: Any, _: object) -> Any:
        reached.append(request)
        raise AssertionError("there is nothing to ask the handler for")

    async def run() -> Any:
        route = Route(api_key, version, version, handle)
        (guarded,) = guard_routes([route], Access(everyone, given_view), given_view)
        request = entity(load_request_schema(api_key, version), REQUESTS[api])
        return await guarded.handle(request, context_of(version, api_key=api_key))

    if api == OFFSET_FETCH:  # The groups reach the handler, without their topics.
        with pytest.raises(AssertionError, match="nothing to ask"):
            asyncio.run(run())
        assert [one.topics for one in reached[0].groups] == [()] * 5
    else:
        answer = asyncio.run(run())
        (elements,) = [
            value
            for value in (getattr(answer, "topics", ()), getattr(answer, "responses", ()))
            if value
        ]
        assert len(elements) == ID_COUNT
        if api == DELETE_TOPICS:
            assert {one.error_code for one in elements} == {ErrorCode.unknown_topic_id}
    assert view.read_count == 1
