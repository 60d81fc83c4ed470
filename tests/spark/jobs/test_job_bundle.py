"""The jobs on the Spark of EMR 7, as they get there: the bundle, and nothing of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidelog_core.audit.events import AUDIT_TOPIC

from tests.spark.jobs.test_activity import ALICE, MARCH, batch, read
from tests.spark.jobs.test_compact_job import filled
from tests.support.random_logs import committed_records, oracle
from tests.support.tiered_cluster import TieredCluster
from tests.support.tiered_partition import TOPIC
from tools import job_bundle, spark_3_5
from tools.places import ToolAbsent

SECONDS_MAX = 300
IMPORTS = """
import importlib, sys
sys.modules["pyspark.sql.datasource"] = None  # as in Spark 3.5
for name in sys.argv[1:]:
    importlib.import_module(f"tidelog_cli.spark_jobs.{name}")
"""


def test_jobs_of_the_bundle_do_without_what_spark_3_5_lacks() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS, *job_bundle.JOBS], check=True)


@dataclass(frozen=True, slots=True)
class Emr:
    """A folder with the unpacked archive, as a driver has it, and Spark 3.5."""

    folder: Path
    spark: spark_3_5.Spark

    def run(self, job: str, arguments: Sequence[str]) -> str:
        """Return what the job prints. It fails as it would there."""
        done = subprocess.run(
            [
                *(self.spark.submit, "--master", "local[2]", "--driver-memory", "512m"),
                *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
                *(f"{job}.py", *arguments),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            # The variables that template.yaml has Spark set.
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": str(self.spark.python),
                "PYSPARK_DRIVER_PYTHON": str(self.spark.python),
                "PYTHONPATH": "./tidelog/packages",
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Emr:
    try:
        spark = spark_3_5.spark()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    folder = tmp_path_factory.mktemp("emr")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    job_bundle.write_bundle(folder, python_version=python)
    archive = folder / job_bundle.ARCHIVE
    with tarfile.open(archive) as packages:
        packages.extractall(folder / "tidelog", filter="data")  # by `#tidelog` of spark.archives
    archive.unlink()
    return Emr(folder, spark)


@pytest.mark.slow  # the first of them builds the bundle
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("split_bytes", ["1000000", "200"], ids=["a task", "several tasks"])
def test_compact(split_bytes: str, emr: Emr, tmp_path: Path) -> None:
    partition, log = filled(tmp_path)
    stores = ["--metadata", f"sqlite://{tmp_path}/metadata.db"]
    stores += ["--objects", f"file://{tmp_path}/objects"]
    options = ["--force", "--json", "--split-bytes", split_bytes]
    (report,) = json.loads(emr.run("compact", [*stores, *options]))
    assert report["outcome"] == "compacted"
    expected = oracle(committed_records(log.batches), log.end_offset)
    found = partition.read_bucket()
    assert [(r.offset, r.key) for r in found] == [(r.offset, r.key) for r in expected]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_audit_and_export(emr: Emr, tmp_path: Path) -> None:
    _, log = filled(tmp_path)
    stores = ["--metadata", f"sqlite://{tmp_path}/metadata.db"]
    stores += ["--objects", f"file://{tmp_path}/objects"]
    assert "all is well" in emr.run("audit", [*stores, TOPIC])
    lake = tmp_path / "lake"
    assert f"{log.end_offset} rows" in emr.run("export", [*stores, "--to", lake.as_uri(), TOPIC])
    assert list(lake.rglob("*.parquet"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_activity(emr: Emr, tmp_path: Path) -> None:
    cluster = TieredCluster(tmp_path)
    cluster.create_topic(AUDIT_TOPIC)
    cluster.add_segment(AUDIT_TOPIC, [batch(0, [(1, read(ALICE, "orders", MARCH, 7))])])
    stores = [word for name, url in cluster.options.items() for word in (f"--{name}", url)]
    (row,) = json.loads(emr.run("activity", [*stores, "--topic", "orders", "--json"]))
    assert (row["user"], row["operation"], row["count"]) == ("User:alice", "Fetch", 7)
    assert row["last_time"].startswith("2026-03-01T00:00:00.005")
