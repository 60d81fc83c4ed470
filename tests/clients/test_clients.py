"""Stock Kafka clients against a real node."""

from __future__ import annotations

import shutil

import pytest

from tests.contracts.client import ClientContract, FirstSteps
from tests.support.drivers.java import java_driver
from tests.support.drivers.process import ROOT, Driver, python_driver
from tools import kafkajs

DRIVERS = ROOT / "tests" / "support" / "drivers"


def _node_command() -> tuple[str, ...]:
    node = shutil.which("node")
    if node is None or kafkajs.modules() is None:
        return ()
    return (node, str(DRIVERS / "kafkajs_driver.js"))


class TestConfluentKafka(ClientContract):
    driver = Driver(
        name="confluent-kafka",
        command=python_driver("confluent_driver"),
        assignors=("range", "cooperative-sticky"),
    )


class TestAiokafka(ClientContract):
    driver = Driver(
        name="aiokafka",
        command=python_driver("aiokafka_driver"),
        assignors=("range", "sticky"),
    )


class TestKafkaPython(ClientContract):
    driver = Driver(
        name="kafka-python",
        command=python_driver("kafka_python_driver"),
        assignors=("range", "sticky"),
    )


class TestKafkaJs(ClientContract):
    driver = Driver(
        name="KafkaJS",
        command=_node_command(),
        assignors=("roundrobin",),
        environment={"NODE_PATH": str(kafkajs.modules())},
        has_static_members=False,
    )


@pytest.mark.slow  # a JVM for each producer and each member
class TestJavaClient(ClientContract):
    driver = java_driver()


class TestJavaClientQuickly(FirstSteps):
    driver = java_driver()
