"""Programs of Kafka's world for ``make test-ecosystem``: installs them, and reports how they did.

    python -m tools.ecosystem install
    python -m tools.ecosystem report RESULTS.xml    writes docs/ecosystem.md

``make test`` needs none of them. The report is of pytest's results in JUnit's form.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from tools import (
    debezium,
    flink,
    kafka_connect,
    kafka_streams,
    mirror_maker,
    postgres,
    spark_kafka,
    word_count,
)
from tools.install import install_all
from tools.places import ROOT

PAGE = ROOT / "docs" / "ecosystem.md"
_TOOLS: tuple[ModuleType, ...] = (
    kafka_connect,
    debezium,
    flink,
    word_count,
    postgres,
    mirror_maker,
)
_INTRODUCTION = """# What runs on Tidelog

`make test-ecosystem` runs these programs, unmodified from Maven Central and Debian, and writes
this page. A program or a node, or both, are killed with `kill -9` in the middle, and every record
is counted; only Kafka Streams' own tests do as they please. `make test` has the other clients:
librdkafka, the Java client, aiokafka, kafka-python, KafkaJS, franz-go and kcat.

| program | version | what is tested | result |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the test file that runs it."""

    name: str
    version: str
    tests: str


PROGRAMS = (
    Program("Kafka Connect, distributed", kafka_connect.VERSION, "tests/ecosystem/test_connect.py"),
    Program("Debezium, PostgreSQL", debezium.VERSION, "tests/ecosystem/test_debezium.py"),
    Program(
        "Flink and its Kafka connector",
        f"{flink.VERSION}, {flink.CONNECTOR_VERSION}",
        "tests/ecosystem/test_flink.py",
    ),
    Program(
        "Kafka Streams, exactly_once_v2, standby",
        word_count.VERSION,
        "tests/ecosystem/test_streams_word_count.py",
    ),
    Program(
        "Kafka Streams' own integration tests",
        kafka_streams.VERSION,
        "tests/clients/streams/test_streams.py",
    ),
    Program("Spark's Kafka source", spark_kafka.VERSION, "tests/ecosystem/test_spark_kafka.py"),
    Program("MirrorMaker 2", mirror_maker.VERSION, "tests/kafka/test_mirror_maker.py"),
)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tools.ecosystem", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install")
    actions.add_parser("report").add_argument("results", type=Path)
    actions.add_parser("tests")
    arguments = parser.parse_args()
    if arguments.action == "install":
        install_all(_TOOLS)
    elif arguments.action == "tests":
        print(" ".join(program.tests for program in PROGRAMS))
    else:
        PAGE.write_text(page(ElementTree.parse(arguments.results)))
        print(PAGE.relative_to(ROOT))


def page(results: ElementTree.ElementTree[ElementTree.Element[str]]) -> str:
    """Return the page with the results of every program's tests."""
    rows = [f"{row_of(program)} {_outcome(results, program)} |\n" for program in PROGRAMS]
    return _INTRODUCTION + "".join(rows)


def row_of(program: Program) -> str:
    """Return the program's row of the page, up to its result."""
    return f"| {program.name} | {program.version} | {_subject(program)} |"


def _subject(program: Program) -> str:
    """Return the first sentence of the test file."""
    text = ast.get_docstring(ast.parse((ROOT / program.tests).read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ").removesuffix(".").replace("``", "`")


def _outcome(results: ElementTree.ElementTree[ElementTree.Element[str]], program: Program) -> str:
    module = program.tests.removesuffix(".py").replace("/", ".")
    cases = [case for case in results.iter("testcase") if case.get("classname") == module]
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    skipped = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    if not cases:
        return "not run"
    if failed:
        return f"{failed} of {len(cases)} failed"
    if skipped:
        return f"{len(cases) - len(skipped)} passed, {len(skipped)} skipped: {skipped[0]}"
    return f"{len(cases)} passed"


if __name__ == "__main__":
    main()
