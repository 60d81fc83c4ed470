"""Kafka Streams' own integration tests, on nodes of ours instead of Kafka's brokers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tidelog_core.config import NodeConfig, settings_of

from tests.support.diskless_default import IS_DISKLESS
from tools import kafka_java, kafka_streams
from tools.java_options import QUICK_JAVA

CLUSTER = Path(__file__).with_name("EmbeddedKafkaCluster.java")
PACKAGE = "org.apache.kafka.streams.integration"
SECONDS_MAX = 1200.0
CLASSES = (
    "EOSUncleanShutdownIntegrationTest",
    "FineGrainedAutoResetIntegrationTest",
    "GlobalKTableEOSIntegrationTest",
    "GlobalKTableIntegrationTest",
    "InternalTopicIntegrationTest",
    "JoinStoreIntegrationTest",
    "KStreamAggregationIntegrationTest",
    "KStreamRepartitionIntegrationTest",
    "KTableKTableForeignKeyJoinDistributedTest",
    "KTableSourceTopicRestartIntegrationTest",
    "PurgeRepartitionTopicIntegrationTest",
    "QueryableStateIntegrationTest",
    "RegexSourceIntegrationTest",
    "RestoreIntegrationTest",
    "SmokeTestDriverIntegrationTest",
    "StandbyTaskEOSIntegrationTest",
    "StoreQueryIntegrationTest",
    "StreamTableJoinTopologyOptimizationIntegrationTest",
    "SuppressionDurabilityIntegrationTest",
)
# Tests that cannot pass where new topics are diskless.
_COUNTS = "it counts the settings of a topic, and `diskless.enable` is one more"
NOT_OF_DISKLESS = {
    "InternalTopicIntegrationTest.shouldCompactAndDeleteTopicsForWindowStoreChangelogs": _COUNTS,
    "InternalTopicIntegrationTest.shouldCompactTopicsForKeyValueStoreChangelogs": _COUNTS,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS_MAX + 60)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command that runs tests, up to which ones."""
    java, jars = shutil.which("java"), kafka_streams.class_path()
    if java is None or jars is None:
        pytest.skip("Kafka Streams is not installed: run `make tools`")
    classes = kafka_java.compiled(CLUSTER, with_jars=jars)
    node = "\n".join([sys.executable, "-m", "tidelog_node"])
    return [
        *(java, *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        f"-Dtidelog.node={node}",
        f"-Dtidelog.settings={','.join(settings_of(NodeConfig))}",
        # Ours comes before Kafka's class of the same name.
        *("-cp", f"{classes}:{jars}", "org.junit.platform.console.ConsoleLauncher", "execute"),
        *("--disable-banner", "--disable-ansi-colors", "--details=summary"),
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_streams_own_tests_pass(name: str, command: list[str], tmp_path: Path) -> None:
    """All tests of a class of Kafka's."""
    reports = tmp_path / "reports"
    command = [command[0], f"-Dtidelog.folder={tmp_path}", *command[1:]]
    done = subprocess.run(
        [*command, f"--select-class={PACKAGE}.{name}", f"--reports-dir={reports}"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    passed, failed = outcomes(reports, name)
    assert passed, done.stdout[-3000:] + done.stderr[-3000:]
    expected = set(NOT_OF_DISKLESS) if IS_DISKLESS else set()
    assert failed == {method for method in expected if method.startswith(f"{name}.")}, done.stdout


def outcomes(reports: Path, name: str) -> tuple[set[str], set[str]]:
    """Return the tests of the class that have passed, and those that have failed."""
    passed, failed = set(), set()
    for report in reports.glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            is_wrong = case.find("failure") is not None or case.find("error") is not None
            method = f"{name}.{case.attrib['name'].partition('(')[0]}"
            (failed if is_wrong else passed).add(method)
    return passed - failed, failed
