"""Which versions a node announces, and to whom."""

from __future__ import annotations

import pytest
from kio.schema.api_versions.v4 import request as wire_request
from tidelog_core.wire_messages import build
from tidelog_node.handlers.cluster.api_versions import ApiVersionsHandler
from tidelog_node.requests.routes import EncodedResponse
from tidelog_node.requests.session import NO_NODE

from tests.support.request_contexts import context_of

OF_NODES = 20_005


async def announced(handler: ApiVersionsHandler, version: int, node_id: int) -> dict[int, int]:
    """Return the newest version of each API that the session is told."""
    request = build(
        wire_request.ApiVersionsRequest, client_software_name="x", client_software_version="1"
    )
    answer = await handler.handle(request, context_of(version, api_key=18, node_id=node_id))
    assert isinstance(answer, EncodedResponse)
    return {int(one.api_key): int(one.max_version) for one in answer.response.api_keys}


@pytest.mark.parametrize("version", range(5))
async def test_only_other_nodes_are_told_of_the_apis_between_nodes(version: int) -> None:
    handler = ApiVersionsHandler([], [], for_nodes={OF_NODES: (0, 1)})
    for _ in range(2):
        assert await announced(handler, version, node_id=3) == {18: 4, OF_NODES: 1}
        assert await announced(handler, version, node_id=NO_NODE) == {18: 4}
