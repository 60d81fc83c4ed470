"""A worker of Kafka Connect's distributed mode, with the connectors of files."""

from __future__ import annotations

from tools.java_program import JavaProgram

VERSION = "4.1.2"
PROGRAM = JavaProgram(
    "kafka-connect",
    "org.apache.kafka.connect.cli.ConnectDistributed",
    (f"org.apache.kafka:connect-runtime:{VERSION}", f"org.apache.kafka:connect-file:{VERSION}"),
)
install = PROGRAM.install
