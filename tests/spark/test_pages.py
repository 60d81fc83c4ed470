"""The programs of the pages about Spark and Iceberg tables are run, word for word but for places."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.spark.jobs.exported import Source
from tests.support.command import called
from tests.support.node_process import NodeProcess
from tools.local_spark import spark_home
from tools.places import ROOT

DOCS = ROOT / "docs"
SECONDS_MAX = 500.0


def programs(page: str) -> list[str]:
    """Return the page's programs in Python."""
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def printed(program: str, folder: Path, words: Mapping[str, str]) -> str:
    """Run the program as a reader does whose environment is activated; return what it prints."""
    for word, here in words.items():
        assert word in program
        program = program.replace(word, here)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            # Alone on this machine.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    )
    return ended.stdout


def stores(source: Source) -> dict[str, str]:
    options = source.cluster.options
    return {
        "dynamodb://tidelog?region=eu-central-1": options["metadata"],
        "s3://bucket/tidelog": options["objects"],
        '"orders': '"t',
        "s3a://bucket": str(source.cluster.folder / "spark"),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_programs_of_the_page_of_sources(tmp_path: Path) -> None:
    source = Source(tmp_path, key_of=lambda offset: b"customer-%d" % (offset % 3))
    source.grow(100)
    session, table, stream, bookmark = programs("spark.md")
    counts = "print(spark.read.parquet('s3a://bucket/tables/orders').count(), again.count())\nspark.stop()\n"
    out = printed("".join((session, table, stream, bookmark, counts)), tmp_path, stores(source))
    assert [line.split("|")[1:3] for line in out.splitlines() if "customer-0" in line] == [
        ["customer-0", "   34"]
    ]
    assert out.splitlines()[-1] == "100 100"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_program_of_the_page_of_sinks(tmp_path: Path) -> None:
    session = programs("spark.md")[0]
    (write,) = programs("spark-sink.md")
    with NodeProcess(tmp_path / "node") as node:
        called("topic", "create", "flights", bootstrap=node.address)
        printed(session + write + "spark.stop()\n", tmp_path, {"localhost:9092": node.address})
        asked = ["consume", "flights", "--from-beginning", "-n", 2, "--json"]
        told = called(*asked, bootstrap=node.address)
    records = [json.loads(line) for line in told.lines]
    assert sorted((one["key"], json.loads(one["value"])["tailnum"]) for one in records) == [
        ("1", "N14228"), ("2", "N24211")
    ]  # fmt: skip


@pytest.mark.slow
def test_the_programs_of_the_page_of_iceberg_tables(tmp_path: Path) -> None:
    source = Source(tmp_path, key_of=lambda offset: b"customer-%d" % (offset % 3))
    source.grow(50)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": (tmp_path / "lake").as_uri(),
    }
    asked = ["job", "iceberg", "t", "--table", "lake.orders"]
    asked += [f"--{name}={url}" for name, url in source.cluster.options.items()]
    asked += [f"--catalog={name}={value}" for name, value in catalog.items()]
    called(*asked)
    given = ", ".join(f'{name}="{value}"' for name, value in catalog.items())
    duckdb, polars = programs("jobs.md")
    out = printed(
        duckdb + polars,
        tmp_path,
        {'type="rest", uri="http://catalog:8181"': given, "2026-11-01": "2023-11-01"},
    )
    for customer, count in ((0, 17), (1, 17), (2, 16)):
        rows = [line.split() for line in out.splitlines() if f"customer-{customer}" in line]
        assert [row[-2] for row in rows] == [str(count)] * 2, out
