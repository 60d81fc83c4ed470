"""kafka-python's own integration tests, against a node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.node_process import NodeProcess
from tools import kafka_python_suite

SECONDS_MAX = 600.0
PASSED_MIN = 50  # so that a suite that ends at once is noticed
# Of a test that fails. Some wait a second for an answer, on a machine that may be busy; and the client
# has a race: it may subscribe while its first request for metadata, of no topic, is under way, and
# then take the answer for one about the topic, and ask again in five minutes.
TRIES = 5
OPTIONS = (
    "-q",
    "--tb=short",
    "--show-capture=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "pytest_timeout",
)
CONFIG = {
    "default.replication.factor": "1",
    "num.partitions": "4",  # as the suite's own broker has
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "tidelog.acl",
    "super.users": "User:ANONYMOUS",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The names of the tests, with their parameters, and what the suite has said."""

    passed: frozenset[str]
    failed: frozenset[str]
    said: str


def run_suite(folder: Path, address: str, results: Path, names: Iterable[str] = ()) -> Outcome:
    """Run the suite, or tests of it by their names."""
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "test/integration", *OPTIONS]
    command += [f"--junitxml={results}"]
    if wanted := [name.partition("[")[0] for name in names]:
        command += ["-k", " or ".join(wanted)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "KAFKA_URI": f"kafka://{address}",
            "KAFKA_VERSION": "4.3",  # what the client takes the node for
            "KAFKA_ROOT": str(folder),  # It has to exist, and nothing of it is used.
        },
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert results.exists(), (done.stdout + done.stderr)[-6000:]
    passed, failed = set(), set()
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(case.attrib["name"])
        elif case.find("skipped") is None:
            passed.add(case.attrib["name"])
    return Outcome(frozenset(passed - failed), frozenset(failed), done.stdout[-6000:])


def test_kafka_pythons_own_tests_pass(tmp_path: Path) -> None:
    folder = kafka_python_suite.folder()
    if folder is None:
        pytest.skip("kafka-python's suite is not installed: run `make test-ecosystem`")
    results = tmp_path / "results.xml"
    # They name broker 0 in an assignment.
    with NodeProcess(tmp_path / "node", broker_id=0, config=CONFIG) as node:
        outcome = run_suite(folder, node.address, results)
        failed = outcome.failed - set(kafka_python_suite.LEFT_OUT)
        assert len(outcome.passed) >= PASSED_MIN, outcome.said
        for _ in range(TRIES):
            if failed:
                outcome = run_suite(folder, node.address, results, sorted(failed))
                failed -= outcome.passed
    assert not failed, outcome.said
