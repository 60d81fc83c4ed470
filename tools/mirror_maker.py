"""Apache Kafka's MirrorMaker 2."""

from __future__ import annotations

from tools.java_program import JavaProgram

VERSION = "4.1.2"
PROGRAM = JavaProgram(
    "kafka-mirror",
    "org.apache.kafka.connect.mirror.MirrorMaker",
    (f"org.apache.kafka:connect-mirror:{VERSION}", f"org.apache.kafka:connect-runtime:{VERSION}"),
)
install = PROGRAM.install
