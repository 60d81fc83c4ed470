"""Kafka's own tool for transactions against a node."""

from __future__ import annotations

import re

import pytest

from tests.kafka.compare import Pair
from tests.kafka.test_tools import run
from tests.kafka.test_transactions import add, producer, read, write
from tests.support.peer import Peer

TOOL = "TransactionsCommand"


@pytest.mark.slow  # five JVMs each; ``test_transactions.py`` compares the same requests
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_transactions_are_described_and_aborted_by_the_tool(pair: Pair, name: str) -> None:
    """The same commands, and the same that is expected of them, for both brokers."""
    peer: Peer = getattr(pair, name)
    peer.create_topic("txn-tool")
    who = producer(peer, "by-tool")
    add(peer, "by-tool", who, ("txn-tool", 0))
    assert write(peer, "by-tool", who, "txn-tool", 0)["error_code"] == "none"

    assert re.search(rf"by-tool\s+1\s+{who[0]}\s+Ongoing", run(peer, TOOL, "list"))
    described = run(peer, TOOL, "describe", "--transactional-id", "by-tool")
    assert re.search(
        rf"1\s+by-tool\s+{who[0]}\s+{who[1]}\s+Ongoing\s+60000 .*txn-tool-0", described
    )
    partition = ("--topic", "txn-tool", "--partition", "0")
    producers = run(peer, TOOL, "describe-producers", *partition)
    assert re.search(rf"{who[0]}\s+{who[1]}\s+-1\s+0\s+\d+\s+0", producers)
    found = run(peer, TOOL, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "15")
    assert "txn-tool" not in found  # its coordinator knows it

    assert read(peer, "txn-tool")["last_stable_offset"] == 0
    run(peer, TOOL, "abort", *partition, "--start-offset", "0")
    aborted = read(peer, "txn-tool")
    assert aborted["last_stable_offset"] == aborted["high_watermark"] == 2
    assert aborted["aborted"] == [0]
