"""Kafka's own tool for share groups against a node."""

from __future__ import annotations

import re

import pytest

from tests.kafka.compare import Pair
from tests.kafka.test_share_groups import alter, settled, share_beat
from tests.kafka.test_tools import run
from tests.support.peer import Peer

TOOL = "consumer.group.ShareGroupCommand"


@pytest.mark.slow  # five JVMs each; ``test_share_groups.py`` compares the same requests
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_share_groups_are_looked_after_by_the_tool(pair: Pair, name: str) -> None:
    """The same commands, and the same that is expected of them, for both brokers."""
    peer: Peer = getattr(pair, name)
    peer.create_topic("share-tool")
    settled(peer, "by-share-tool", "one", "share-tool")
    group = ("--group", "by-share-tool")
    assert re.search(r"by-share-tool\s+Stable", run(peer, TOOL, "--list", "--state"))
    members = run(peer, TOOL, "--describe", *group, "--members")
    assert re.search(r"by-share-tool\s+one\s+/127.0.0.1\s+test\s+1\s+share-tool:0", members)
    share_beat(peer, "by-share-tool", "one", -1)

    # The tool of 4.1 cannot move a group, and Kafka 4.1 does not (see ``allowed.py``).
    alter(peer, "by-share-tool", ("share-tool", 0, 7))
    offsets = run(peer, TOOL, "--describe", *group, "--offsets")
    start = {"tidelog": "7", "kafka": "-"}[name]
    assert re.search(rf"by-share-tool\s+share-tool\s+0\s+{start}", offsets)
    deleted = run(peer, TOOL, "--delete-offsets", *group, "--topic", "share-tool")
    assert re.search(r"share-tool\s+Successful", deleted)
    assert "was successful" in run(peer, TOOL, "--delete", *group)
