"""Java's client at a node where clients log in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.drivers.java import java_driver
from tests.support.drivers.process import Driver
from tests.support.sasl_node import SaslNode

_MODULES = "org.apache.kafka.common.security"


def java_login(
    folder: Path, mechanism: str, user: str, password: str, *, is_token: bool = False
) -> Driver:
    """Return the driver of a client that logs in so. Skips the test without Java."""
    driver = java_driver()
    if not driver.command:
        pytest.skip("needs java and Kafka's jars (make tools)")
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    token = ' tokenauth="true"' if is_token else ""
    properties = folder / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={_MODULES}.{module} required username="{user}"'
        f' password="{password}"{token};\n',
        encoding="utf-8",
    )
    return replace(driver, environment={"CLIENT_PROPERTIES": str(properties)})


def most_logins(node: SaslNode, *mechanisms: str) -> int:
    """Return how often the client that did so most has logged in, by these mechanisms if given."""
    counts = Counter(
        client
        for client, _, mechanism in node.logins()
        if not mechanisms or mechanism in mechanisms
    )
    return max(counts.values(), default=0)
