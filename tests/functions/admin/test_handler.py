"""The function as Lambda runs it: a process of its own, called again while it is warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.admin_calls import an_event, new_cluster

INVOKE = """
import json, sys

class Context:
    def get_remaining_time_in_millis(self):
        return 20_000

from tidelog_functions.admin.handler import handle

for line in sys.stdin:
    print(json.dumps(handle(json.loads(line), Context())), flush=True)
unwanted = {"boto3", "aioboto3", "botocore", "aiohttp", "obstore", "numpy", "pyarrow", "rich"}
print(json.dumps(sorted(unwanted & sys.modules.keys())))
"""


def invoke(environment: dict[str, str], *events: object) -> list[Any]:
    """Return the answers, and last the modules that ought not to have been loaded."""
    done = subprocess.run(
        [sys.executable, "-c", INVOKE],
        input="\n".join(map(json.dumps, events)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_warm_function_answers_one_event_after_the_other(tmp_path: Path) -> None:
    with new_cluster(tmp_path):
        made, listed, refused, unwanted = invoke(
            {
                "TIDELOG_METADATA": f"sqlite://{tmp_path}/metadata.db",
                "TIDELOG_OBJECTS": f"file://{tmp_path}/objects",
                "TIDELOG_CONFIG_NUM_PARTITIONS": "3",
            },
            an_event("POST", "/topics", {"name": "t"}),
            an_event("GET", "/topics"),
            {**an_event("GET", "/topics"), "requestContext": {"http": {"method": "GET"}}},
        )
    assert made["statusCode"] == 201
    assert json.loads(made["body"])["partition_count"] == 3
    assert [t["name"] for t in json.loads(listed["body"])["topics"]] == ["t"]
    assert refused["statusCode"] == 401
    # A cold start pays for every module that is loaded.
    assert unwanted == []


def test_a_wrong_environment_is_logged() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INVOKE],
        input=json.dumps(an_event("GET", "/topics")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TIDELOG_ADMIN_AUTHORIZATION": "nobody"},
    )
    assert done.returncode != 0
    assert "TIDELOG_METADATA is required" in done.stderr
    assert "must be iam or none, not 'nobody'" in done.stderr
