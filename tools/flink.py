"""Apache Flink with its connector for Kafka, for a program of our own."""

from __future__ import annotations

from tools.java_program import JavaProgram

VERSION, CONNECTOR_VERSION = "2.0.0", "4.0.1-2.0"
PROGRAM = JavaProgram(
    "flink",
    "FlinkCopy",
    (
        f"org.apache.flink:flink-clients:{VERSION}",
        f"org.apache.flink:flink-connector-base:{VERSION}",
        f"org.apache.flink:flink-connector-kafka:{CONNECTOR_VERSION}",
    ),
)
install = PROGRAM.install
