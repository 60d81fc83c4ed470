"""Java's client at a node that asks who it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drivers.lines import Message
from tests.support.java_login import java_login, most_logins
from tests.support.sasl_node import (
    PASSWORD,
    SECONDS_MAX,
    TOPIC,
    USER,
    SaslNode,
)


@pytest.mark.slow
def test_java_raises_its_own_error_for_a_mechanism_that_is_not_enabled(tmp_path: Path) -> None:
    mechanisms = {"listener_name_sasl_sasl_enabled_mechanisms": "SCRAM-SHA-512"}
    with SaslNode(tmp_path / "node", **mechanisms) as node:
        node.prepare()
        driver = java_login(tmp_path, "PLAIN", USER, PASSWORD)
        with pytest.raises(AssertionError, match="UnsupportedSaslMechanismException") as raised:
            driver.produce(node.sasl_address, TOPIC, [Message(b"v", partition=0)])
        assert "SCRAM-SHA-512" in str(raised.value)


@pytest.mark.slow  # seconds, to see three sessions end
def test_java_authenticates_again_without_losing_a_request(tmp_path: Path) -> None:
    with SaslNode(tmp_path / "node", connections_max_reauth_ms="2000") as node:
        node.prepare()
        driver = java_login(tmp_path, "SCRAM-SHA-512", USER, PASSWORD)
        with driver.member(node.sasl_address, TOPIC, "g") as member:
            sent = driver.produce_until(
                node.sasl_address,
                TOPIC,
                lambda: most_logins(node) >= 4,
                seconds_max=SECONDS_MAX,
            )
            while len(member.records) < sent:
                assert member.take_in(SECONDS_MAX)
        assert most_logins(node) >= 4
        # One to learn of the cluster and one to the node, and the consumer's to its coordinator:
        # none of them was replaced by another.
        assert len({client for client, _, _ in node.logins()}) <= 5
