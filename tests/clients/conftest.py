"""One node for all client tests, and new topics on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess

# Short, so that no test waits long for a member to be missed or to get its partitions.
CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node that stays up for the whole run."""
    folder: Path = tmp_path_factory.mktemp("clients")
    with NodeProcess(folder / "node", config=CONFIG) as node:
        yield node.address


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Create a topic of a name of its own and return the name."""

    def create(*, partitions: int, configs: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        # Most records have timestamps of long ago, and the node outlives a check of retention.
        settings = {"retention.ms": "-1", **(configs or {})}
        topic = NewTopic(name, partitions, 1, config=settings)
        admin.create_topics([topic])[name].result(30)
        return name

    return create
