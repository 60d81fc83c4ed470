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
    franz_go_copy,
    kafka_connect,
    kafka_python_suite,
    kafka_streams,
    kafkajs,
    kaskade,
    mirror_maker,
    postgres,
    sarama,
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
    sarama,
    franz_go_copy,
    kafkajs,
    kaskade,
    kafka_python_suite,
)
_INTRODUCTION = """# What runs on Tidelog

`make test-ecosystem` runs these programs, unmodified from Maven Central, PyPI, npm, Go's module
proxy and Debian, and writes this page. A program or a node, or both, are killed with `kill -9` in
the middle, and every record is counted; only the suites that Kafka Streams and kafka-python have
of their own do as they please. `make test` has more of the clients: librdkafka, the Java client,
aiokafka, kafka-python, KafkaJS, franz-go and kcat.

| program | version | what is tested | result |
|---|---|---|---|
"""

_LEFT_OUT = """
## Tests left out

Of kafka-python's own tests these fail, and are not counted:

| test | why |
|---|---|
"""
_ABSENT = """
## Not among them

These are in no package registry, or a part of them is not, so `make test-ecosystem` cannot have
them. They were run by hand from their sources.

| program | what is missing | what came out by hand |
|---|---|---|
"""
_BY_HAND = (
    (
        "KMinion",
        "its module, in Go's proxy",
        "its exporter told the lag of groups to Prometheus",
    ),
    (
        "Redpanda Console 2.3.4",
        "its backend's module, in Go's proxy",
        "topics, messages, groups with lag and the registry's page were right",
    ),
    (
        "Karapace 6.2",
        "its package, on PyPI",
        "two instances shared `_schemas`; one took over when the other was killed",
    ),
    (
        "aiokafka's own integration tests, 0.14.0",
        "the tests, in its source distribution",
        "each passed at least once but those that start Docker; on diskless topics two fail",
    ),
)


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
    Program("sarama", sarama.COPY.version, "tests/ecosystem/test_sarama.py"),
    Program("franz-go", franz_go_copy.COPY.version, "tests/ecosystem/test_franz_go.py"),
    Program("KafkaJS", kafkajs.VERSION, "tests/ecosystem/test_kafkajs.py"),
    Program("kaskade", kaskade.VERSION, "tests/ecosystem/test_kaskade.py"),
    Program(
        "kafka-python's own integration tests",
        kafka_python_suite.VERSION,
        "tests/ecosystem/test_kafka_python_suite.py",
    ),
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
    left_out = [
        f"| `{name}` | {reason} |\n" for name, reason in kafka_python_suite.LEFT_OUT.items()
    ]
    by_hand = [f"| {' | '.join(columns)} |\n" for columns in _BY_HAND]
    return "".join((_INTRODUCTION, *rows, _LEFT_OUT, *left_out, _ABSENT, *by_hand))


def row_of(program: Program) -> str:
    """Return the program's row of the page, up to its result."""
    return f"| {program.name} | {program.version} | {_subject(program)} |"


def _subject(program: Program) -> str:
    """Return the first sentence of the test file."""
    text = ast.get_docstring(ast.parse((ROOT / program.tests).read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ").removesuffix(".").replace("``", "`")


def _outcome(results: ElementTree.ElementTree[ElementTree.Element[str]], program: Program) -> str:
    module = program.tests.removesuffix(".py").replace("/", ".")
    cases = [
        case
        for case in results.iter("testcase")
        if f"{case.get('classname')}.".startswith(f"{module}.")  # or of a class in the module
    ]
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
