"""Kafka Streams, for a program of our own."""

from __future__ import annotations

from tools.java_program import JavaProgram

VERSION = "4.1.2"
PROGRAM = JavaProgram(
    "kafka-word-count", "WordCount", (f"org.apache.kafka:kafka-streams:{VERSION}",)
)
install = PROGRAM.install
