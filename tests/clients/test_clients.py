"""Stock Kafka clients against a real node."""

from __future__ import annotations

import shutil

from tests.clients.drivers.process import ROOT, Driver, python_driver
from tests.contracts.client import ClientContract
from tools import kafka_java, kafkajs
from tools.java_options import QUICK_JAVA

DRIVERS = ROOT / "tests" / "clients" / "drivers"


def _node_command() -> tuple[str, ...]:
    node = shutil.which("node")
    if node is None or kafkajs.modules() is None:
        return ()
    return (node, str(DRIVERS / "kafkajs_driver.js"))


def _java_command() -> tuple[str, ...]:
    java, class_path = shutil.which("java"), kafka_java.class_path()
    if java is None or class_path is None:
        return ()
    classes = kafka_java.compiled(DRIVERS / "JavaDriver.java")
    return (java, *QUICK_JAVA, "-cp", f"{class_path}:{classes}", "JavaDriver")


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


class TestJavaClient(ClientContract):
    driver = Driver(
        name="Java kafka-clients",
        command=_java_command(),
        assignors=("range", "cooperative-sticky"),
    )
