"""Install every tool that the tests and benchmarks use.

A tool that cannot be installed is reported and skipped. Its tests are skipped too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

from tools import (
    chromium,
    dynamodb_local,
    franz_go,
    kafka_broker,
    kafka_java,
    kafka_streams,
    kafkajs,
    kcat,
    lambda_python,
    librdkafka_suite,
    localstack,
    ministack,
    mirror_maker,
    promtool,
    sam,
)
from tools.places import ToolAbsent

TOOLS = (
    chromium,
    dynamodb_local,
    lambda_python,
    ministack,
    localstack,
    kcat,
    kafkajs,
    franz_go,
    kafka_java,
    kafka_broker,
    kafka_streams,
    librdkafka_suite,
    mirror_maker,
    promtool,
    sam,
)


def main() -> None:
    """Install what ``make test`` uses."""
    install_all(TOOLS)


def install_all(tools: Iterable[ModuleType]) -> None:
    """Install the tools; report the missing ones on stderr."""
    for tool in tools:
        try:
            tool.install()
        except ToolAbsent as absent:
            print(
                f"{tool.__name__}: not installed, its tests will be skipped: {absent}",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
