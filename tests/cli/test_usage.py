"""What the command says of itself, and of a command line that is wrong."""

from __future__ import annotations

import asyncio
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Cluster
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.command import called, tidelog
from tools.ports import free_port

STORES = ("--metadata", "dynamodb://t", "--objects", "s3://b/c")


def test_help_names_every_command() -> None:
    text = tidelog("--help").out.decode()
    for command in ("up", "topic", "produce", "consume", "group", "user", "tier", "verify"):
        assert f" {command} " in text


def test_without_a_command_the_help_is_shown() -> None:
    assert b"Usage: tidelog" in tidelog().out
    assert b"Usage: tidelog tier" in called("tier").out


def test_help_imports_neither_stores_nor_node_nor_what_draws() -> None:
    """What makes start-up slow must be imported only by the commands that need it."""
    code = "import sys, tidelog; old = set(sys.modules); import tidelog_cli.commands; "
    code += "print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.decode().split()}
    assert not loaded & {"kio", "tidelog_core", "tidelog_node", "sqlite3", "obstore", "rich"}


IMPORTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "tidelog_cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from tidelog_cli.main import app
app()
"""
PUTTING_TOGETHER = """
import os, signal, typer.main

def interrupting(*_):
    os.kill(os.getpid(), signal.SIGINT)

typer.main.get_command = interrupting
from tidelog_cli.main import app
app()
"""


@pytest.mark.usefixtures("no_ignored_signals")
@pytest.mark.parametrize("program", [IMPORTING, PUTTING_TOGETHER], ids=["imports", "options"])
def test_an_interrupt_before_the_command_runs_ends_it_in_silence(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("flush",), "no such command 'flush'"),
        (("topic", "creat"), "Did you mean 'create'? see 'tidelog topic --help'"),
        (("certificate",), "missing argument 'FOLDER'"),
        (("verify", "--deep"), "--deep"),
        (("produce",), "missing argument 'TOPIC'"),
        (("consume", "t", "--max-messages", "0"), "--max-messages"),
        (("consume", "t", "--group", "g", "--partition", "1"), "--group"),
        (("consume", "t", "--from-beginning", "--offset", "3"), "--offset"),
        (("consume", "t", "--json", "--format", "%s"), "--format"),
        (("consume", "t", "--offset", "first"), "earliest, latest, N"),
        (("consume", "t", "--bootstrap", "localhost:x"), "'localhost:x' is not host:port"),
        (("produce", "t", "--compression", "brotli"), "gzip"),
        (("produce", "t", "--header", "h"), "NAME=VALUE"),
        (("verify",), "--data-dir"),
        (("verify", "--metadata", "mysql://x", "--objects", "memory:"), "sqlite:///path"),
        (("up", "--nodes", "65"), "64"),
        (("up", "--set", "no.such=1"), "'no.such'"),
        (("up", "--set", "log.segment.bytes=big"), "'log.segment.bytes'"),
        (("up", "--log-level", "loud"), "DEBUG"),
        (("up", "--metadata", "mysql://x"), "sqlite:///path"),
        (("up", "--objects", "https://x"), "s3://bucket"),
        (("topic", "list", "--context", "c"), "--context comes before the command: tidelog --con"),
        (("--bootstrap", "h:1", "topic", "list"), "comes behind the command: tidelog COMMAND --b"),
        (("topic", "-b", "h:1", "list"), "-b comes behind the command: tidelog topic COMMAND -b"),
    ],
)
def test_wrong_command_line_is_one_line_on_stderr_and_status_2(
    arguments: tuple[str, ...], said: str
) -> None:
    outcome = called(*arguments, status=2)
    assert outcome.out == b""
    assert outcome.errors.count("\n") == 1
    assert outcome.errors.startswith("tidelog: ")
    assert said in outcome.errors


def test_help_names_values_and_nothing_behind_flags() -> None:
    for command, usage in (
        (("topic", "create"), "[OPTIONS] TOPIC "),
        (("topic", "describe"), "[OPTIONS] TOPIC... "),
        (("group", "describe"), "[OPTIONS] [GROUP]... "),
        (("produce",), "[OPTIONS] TOPIC [FILE] "),
        (("consume",), "[OPTIONS] TOPIC "),
    ):
        text = called(*command, "--help").out.decode()
        assert f"Usage: tidelog {' '.join(command)} {usage}" in text
        assert not re.search(r"<(bool|str|int|float|path|list)", text)
        assert "{" not in text


def test_spark_job_names_an_unknown_topic_before_java_starts(tmp_path: Path) -> None:
    asyncio.run(_create_cluster(tmp_path / "metadata.db"))
    (tmp_path / "objects").mkdir()
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java.parent.parent))
        unknown = tidelog("job", "audit", "t", "--data-dir", tmp_path, status=1)
        assert unknown.errors.startswith("tidelog: there is no topic 't'; ")
        assert not (tmp_path / "started").exists()
        broken = tidelog("job", "audit", "--data-dir", tmp_path, status=1)
        assert (tmp_path / "started").exists()
        assert broken.errors.splitlines()[-1].startswith("tidelog: Spark does not start: ")
        patch.setenv("JAVA_HOME", str(tmp_path))
        missing = called("job", "audit", "t", "--data-dir", tmp_path, status=1)
        assert "has no bin/java: Spark needs Java 17" in missing.errors
        patch.delenv("JAVA_HOME")
        patch.setenv("PATH", str(tmp_path))
        missing = called("job", "audit", "t", "--data-dir", tmp_path, status=1)
        assert missing.errors == (
            "tidelog: this needs Java 17 or later: install it, or set JAVA_HOME\n"
        )


async def _create_cluster(database: Path) -> None:
    store = SqliteMetadataStore(database)
    try:
        await store.commit([records.put(Cluster(cluster_id="c"))])
    finally:
        await store.close()


def test_version_says_what_runs() -> None:
    line = called("--version").out.decode()
    assert line.startswith(f"tidelog {metadata.version('tidelog')}, ")
    assert platform.python_version() in line
    assert line.endswith("compiled\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_up_on_all_addresses_asks_which_one_clients_use(host: str, tmp_path: Path) -> None:
    outcome = called("up", "--host", host, "--data-dir", tmp_path / "data", status=2)
    assert "--advertised-host" in outcome.errors
    assert not (tmp_path / "data").exists()
    outcome = called("up", "--advertised-host", host, "--data-dir", tmp_path / "data", status=2)
    assert "is no address to connect to" in outcome.errors


def test_up_names_an_address_that_this_machine_does_not_have(tmp_path: Path) -> None:
    for option in ("--host", "--http-host", "--registry-host"):
        ports = ("--port", free_port(), "--http-port", free_port(), "--registry-port", free_port())
        given = (*ports, option, "192.0.2.1", "--data-dir", tmp_path / "data")  # RFC 5737
        outcome = called("up", *given, status=1)
        assert "cannot listen on 192.0.2.1, port" in outcome.errors
        assert outcome.errors.endswith(f"; give another {option}\n")
    assert not (tmp_path / "data").exists()


def test_up_names_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "data"
    outcome = called("up", "--port", free_port(), "--no-console", "--data-dir", place, status=1)
    assert outcome.errors == (
        f"tidelog: cannot write to {place}: Not a directory; give another --data-dir\n"
    )


def test_what_is_not_there_is_named_and_status_1(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for arguments in (
        ("verify", "--data-dir", missing),
        ("tier", "status", "--metadata", f"sqlite://{missing}"),
        ("produce", "t", missing),
    ):
        outcome = called(*arguments, status=1)
        assert str(missing) in outcome.errors
        assert outcome.errors.count("\n") == 1
    assert not missing.exists()


def test_single_nodes_data_directory_is_not_taken_for_a_clusters(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    outcome = called("up", "--data-dir", tmp_path, "--port", free_port(), status=1)
    assert "single node" in outcome.errors
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("arguments", "absent", "extra"),
    [
        (("up",), ("re2",), "node"),
        (("job", "audit"), ("pyspark",), "spark"),
        (("job", "compact", "--spark", *STORES), ("pyspark",), "spark"),
        (("verify", "--from", "s3://b/c"), ("obstore", "tidelog_core.objects.s3"), "aws"),
        (
            ("verify", "--metadata", "dynamodb://t", "--objects", "memory:"),
            (
                "aioboto3",
                "tidelog_core.metadata.stores.dynamodb",
                "tidelog_core.metadata.stores.dynamodb_client",
            ),
            "aws",
        ),
    ],
)
def test_what_needs_an_extra_names_it(
    arguments: tuple[str, ...],
    absent: tuple[str, ...],
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in absent:
        if module.startswith("tidelog"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        else:
            monkeypatch.setitem(sys.modules, module, None)
    outcome = called(*arguments, status=None)
    assert outcome.status in {1, 2}
    assert outcome.errors.count("\n") == 1
    assert f"tidelog[{extra}]" in outcome.errors
