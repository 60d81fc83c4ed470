"""The page's messages are those of the programs, and of the clients that the tests use."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tests.docs.quoted_commands import commands_of, problem_of
from tests.support.source_texts import is_in_source, quoted_in
from tools import kafka_java
from tools.places import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
LIBRDKAFKA = re.compile(r"`((?:Local|Broker): [^`]+)`")
JAVA = re.compile(r"`(\w+Exception)`")
CODES = range(-200, 130)


def test_every_quoted_message_is_in_the_source() -> None:
    quoted = list(quoted_in(PAGE))
    assert len(quoted) > 50
    assert [text for text in quoted if not is_in_source(text)] == []


def test_a_message_with_another_value_in_the_middle_is_found() -> None:
    assert is_in_source("group … has members (…); stop them first")
    assert not is_in_source("group … has consumers (…); stop them first")


def test_the_messages_of_librdkafka_are_its_own() -> None:
    known = {KafkaError(code).str() for code in CODES}
    quoted = set(LIBRDKAFKA.findall(PAGE))
    assert len(quoted) > 10
    assert quoted - known == set()


def test_the_exceptions_of_java_are_its_own() -> None:
    jars = kafka_java.class_path()
    if jars is None:
        pytest.skip("Kafka's Java client is not installed: run `make tools`")
    jar = Path(jars).parent / f"kafka-clients-{kafka_java.VERSION}.jar"
    with zipfile.ZipFile(jar) as opened:
        known = {name.rpartition("/")[2].removesuffix(".class") for name in opened.namelist()}
    assert set(JAVA.findall(PAGE)) - known == set()


def test_every_command_parses() -> None:
    commands = commands_of(PAGE)
    assert [problem for one in commands if (problem := problem_of(one))] == []
