"""One broker of each kind for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.compare import Pair
from tests.kafka.peer import Peer
from tests.node.node_process import NodeProcess
from tools import kafka_broker
from tools.places import ToolAbsent

# Both are told the same; a small number of shards starts sooner.
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "max.incremental.fetch.session.cache.slots": "0",
    "group.max.size": "3",
}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give both brokers, empty when the session began."""
    root = tmp_path_factory.mktemp("compared")
    broker = kafka_broker.serve(root / "kafka", CONFIG)
    try:
        port = broker.__enter__()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    try:
        with NodeProcess(root / "tidelog", config=CONFIG) as node:
            yield Pair(Peer("kafka", port), Peer("tidelog", node.port))
    finally:
        broker.__exit__(None, None, None)
