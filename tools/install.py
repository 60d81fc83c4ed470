"""Install every tool that the tests and benchmarks talk to.

A tool that this machine cannot have is named and left out: its tests say so and skip.
"""

from __future__ import annotations

import sys

from tools import (
    dynamodb_local,
    kafka_broker,
    kafka_java,
    kafkajs,
    kcat,
    lambda_python,
    localstack,
    ministack,
    sam,
)
from tools.places import ToolAbsent

TOOLS = (
    dynamodb_local,
    lambda_python,
    ministack,
    localstack,
    kcat,
    kafkajs,
    kafka_java,
    kafka_broker,
    sam,
)


def main() -> None:
    """Install them all, and say what is missing on stderr."""
    for tool in TOOLS:
        try:
            tool.install()
        except ToolAbsent as absent:
            print(
                f"{tool.__name__}: not installed, its tests will be skipped: {absent}",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
