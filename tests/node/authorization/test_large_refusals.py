"""A request about thousands of things that the client may not use delays nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.answer_times import AnswerTimes
from tests.node.large_requests import CONTROL_REQUESTS
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient

ELEMENTS_MAX = 12_000
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node on which clients may do nothing."""
    config = {
        "socket.request.max.elements": str(ELEMENTS_MAX),
        "authorizer.class.name": "tidelog.acl",
    }
    with NodeProcess(tmp_path_factory.mktemp("refusals") / "node", config=config) as process:
        yield process


# The other one is refused as a whole.
REFUSED_ONE_BY_ONE = sorted(CONTROL_REQUESTS.keys() - {"DescribeUserScramCredentials"})


@pytest.mark.parametrize("name", REFUSED_ONE_BY_ONE)
def test_others_are_answered_while_many_elements_are_refused(node: NodeProcess, name: str) -> None:
    request = CONTROL_REQUESTS[name](ELEMENTS_MAX - 10)
    with WireClient(node.port) as client, AnswerTimes(node.port) as times:
        client.socket.settimeout(SECONDS_MAX)
        client.send(request)
        answer = client.receive()
    assert len(answer) > 2 * ELEMENTS_MAX
    assert len(times.seconds) > 5  # Unless it is cut into turns there is one.
