"""What each kind of Spark's Python processes imports: a session's first query starts them all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CLIENTS = "tidelog.wire.connection"
PLANNING = "tidelog_spark.planning.plan"
RECORDS = "tidelog_core.metadata.records"
SETTINGS = "tidelog_core.config"
CHAINS = "tidelog_core.diskless.chain.store"
OPTIONS = {"metadata": "sqlite:///m.db", "objects": "file:///o", "subscribe": "t"}


def imported(program: str) -> set[str]:
    """Return the modules of a process that has run the program."""
    code = f"{program}\nimport json, sys\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    return {*json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (
            "from tidelog_spark.source import TidelogDataSource\n"
            f"TidelogDataSource({OPTIONS}).schema()",
            {"pyarrow", "numpy", CLIENTS, PLANNING, RECORDS, SETTINGS},
        ),
        ("import tidelog_spark.planning.table_planner", {CLIENTS, CHAINS, SETTINGS}),
        (
            "import tidelog_spark.split_rows, tidelog_spark.reading.split_reader",
            {CLIENTS, PLANNING, RECORDS, SETTINGS},
        ),
        ("import tidelog_spark.streaming.stream_reader", {CLIENTS, PLANNING, RECORDS, SETTINGS}),
    ],
    ids=["columns", "plan", "task", "task of a stream"],
)
def test_a_process_imports_only_what_it_needs(program: str, unwanted: set[str]) -> None:
    assert imported(program) & unwanted == set()
