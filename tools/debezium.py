"""A worker of Kafka Connect with Debezium's connector for PostgreSQL."""

from __future__ import annotations

from tools import kafka_connect
from tools.java_program import JavaProgram

VERSION = "3.2.0.Final"
PROGRAM = JavaProgram(
    "debezium",
    kafka_connect.PROGRAM.main_class,
    (
        f"io.debezium:debezium-connector-postgres:{VERSION}",
        f"org.apache.kafka:connect-runtime:{kafka_connect.VERSION}",
    ),
)
install = PROGRAM.install
