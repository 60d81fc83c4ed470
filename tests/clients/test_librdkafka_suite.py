"""librdkafka's own test suite, against a node: the tests that need a broker, in their quick mode."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.node_process import NodeProcess
from tools import librdkafka_suite

SECONDS_MAX = 2400.0
PASSED_MIN = 70  # so that a suite that ends at once is noticed
CONFIG = {
    "num.partitions": "4",  # as the suite's own cluster has
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
_SCRIPTS = "it calls the scripts of Kafka's distribution"
# Tests that fail, and why.
LEFT_OUT = {
    "0052_msg_timestamps": _SCRIPTS,
    "0077_compaction": _SCRIPTS,
    "0081_admin": "it makes ACLs, and the node has no authorizer",
    "0103_transactions": "it needs three brokers",
    "0109_auto_create_topics": _SCRIPTS,
    "0115_producer_auth": _SCRIPTS,
    "0119_consumer_auth": _SCRIPTS,
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OUTCOME = re.compile(r"^\| +(\w+) +\| +(PASSED|FAILED) ", re.MULTILINE)  # in the table at the end


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_librdkafkas_own_tests_pass(tmp_path: Path) -> None:
    folder = librdkafka_suite.folder()
    if folder is None:
        pytest.skip("librdkafka's suite is not built: run `make tools`")
    with NodeProcess(tmp_path / "node", config=CONFIG) as node:
        settings = tmp_path / "test.conf"
        settings.write_text(f"bootstrap.servers={node.address}\ntest.timeout.multiplier=4\n")
        log = tmp_path / "suite.log"
        with log.open("wb") as output:
            subprocess.run(
                # Quick, four at a time, no known issues, no tests without a broker, and none that delay
                # sockets within the process, which hit others that run beside them.
                ["./test-runner", "-Q", "-p4", "-K", "-L", "-E"],
                cwd=folder,
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": librdkafka_suite.libraries(),
                    "RDKAFKA_TEST_CONF": str(settings),
                    "TEST_KAFKA_VERSION": "4.1.0",
                },
                stdout=output,
                stderr=output,
                timeout=SECONDS_MAX,
                check=False,
            )
    said = _COLOUR.sub("", log.read_text(errors="replace"))
    outcomes = dict(_OUTCOME.findall(said))
    failed = {name for name, outcome in outcomes.items() if outcome == "FAILED"}
    assert failed <= set(LEFT_OUT), said[-6000:]
    assert len(outcomes) - len(failed) >= PASSED_MIN, said[-6000:]
