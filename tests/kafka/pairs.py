"""Pairs of brokers with settings of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kafka.compare import Pair, Peer
from tests.support.node_process import NodeProcess
from tools import kafka_broker
from tools.places import ToolAbsent


@contextmanager
def pair_with(root: Path, config: dict[str, str]) -> Iterator[Pair]:
    """Run Apache Kafka and a node with the same settings; skips the test if there is no Kafka."""
    with ExitStack() as stack:
        try:
            port = stack.enter_context(kafka_broker.serve(root / "kafka", config))
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        node = stack.enter_context(NodeProcess(root / "tidelog", config=config))
        peers = Pair(Peer("kafka", port), Peer("tidelog", node.port))
        yield peers
        peers.close()
