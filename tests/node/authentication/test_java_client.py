"""Java's client at a node that asks who it is."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.drivers.java import java_driver
from tests.support.drivers.lines import Message, to_line
from tests.support.drivers.process import Driver
from tests.support.sasl_node import (
    PASSWORD,
    SECONDS_MAX,
    TOPIC,
    USER,
    SaslNode,
)

VALUES = [b"a record", b"x" * 300_000]
MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    with SaslNode(tmp_path_factory.mktemp("sasl") / "node") as node:
        node.prepare()
        yield node


def driver_of(folder: Path, mechanism: str, password: str = PASSWORD, user: str = USER) -> Driver:
    """Return the driver of a client that logs in so."""
    driver = java_driver()
    if not driver.command:
        pytest.skip("needs java and Kafka's jars (make tools)")
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    properties = folder / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={MODULES}.{module} required username="{user}" password="{password}";\n',
        encoding="utf-8",
    )
    return replace(driver, environment={"CLIENT_PROPERTIES": str(properties)})


@pytest.mark.slow
def test_java_raises_its_own_error_for_a_mechanism_that_is_not_enabled(tmp_path: Path) -> None:
    mechanisms = {"listener_name_sasl_sasl_enabled_mechanisms": "SCRAM-SHA-512"}
    with SaslNode(tmp_path / "node", **mechanisms) as node:
        node.prepare()
        driver = driver_of(tmp_path, "PLAIN")
        with pytest.raises(AssertionError, match="UnsupportedSaslMechanismException") as raised:
            driver.produce(node.sasl_address, TOPIC, [Message(b"v", partition=0)])
        assert "SCRAM-SHA-512" in str(raised.value)


@pytest.mark.slow  # seconds, to see three sessions end
def test_java_authenticates_again_without_losing_a_request(tmp_path: Path) -> None:
    with SaslNode(tmp_path / "node", connections_max_reauth_ms="2000") as node:
        node.prepare()
        driver = driver_of(tmp_path, "SCRAM-SHA-512")
        arguments = ("produce", node.sasl_address, TOPIC, "none", "0")
        member = driver.member(node.sasl_address, TOPIC, "g")
        with (
            member,
            subprocess.Popen(
                [*driver.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **driver.environment},
            ) as java,
        ):
            assert java.stdin is not None
            sent = 0
            deadline = time.monotonic() + SECONDS_MAX
            while most_logins(node) < 4 and time.monotonic() < deadline:
                java.stdin.write(to_line(Message(b"v", partition=0)) + "\n")
                java.stdin.flush()
                sent += 1
                time.sleep(0.02)
            out, errors = java.communicate(timeout=SECONDS_MAX)
            assert java.returncode == 0, errors
            assert out.count("acked ") == sent
            while len(member.records) < sent:
                assert member.take_in(SECONDS_MAX)
        assert most_logins(node) >= 4
        # One to learn of the cluster and one to the node, and the consumer's to its coordinator:
        # none of them was replaced by another.
        assert len({client for client, _, _ in node.logins()}) <= 5


def most_logins(node: SaslNode) -> int:
    """Return how often the client that did so most has authenticated."""
    counts: dict[str, int] = {}
    for client, _, _ in node.logins():
        counts[client] = counts.get(client, 0) + 1
    return max(counts.values(), default=0)
