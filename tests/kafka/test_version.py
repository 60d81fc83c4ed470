"""The version of Apache Kafka that answers are compared with."""

from __future__ import annotations

import pytest

from tools import kafka_broker, kafka_java


@pytest.mark.parametrize("version", [kafka_broker.VERSION, kafka_java.VERSION])
def test_the_jars_have_none_of_the_holes_that_are_known(version: str) -> None:
    """CVE-2026-35554: a producer before 4.1.2 may send records to the wrong topic."""
    assert tuple(map(int, version.split("."))) >= (4, 1, 2)
