"""Commands of exports where the packages of an extra are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import SECONDS_MAX, environment_without


@pytest.mark.parametrize(
    ("hidden", "arguments", "needed"),
    [
        (
            "pyiceberg",
            ["iceberg", "t", "--table", "a.b"],
            "pyiceberg: pip install 'tidelog[iceberg]'",
        ),
        ("pyarrow", ["iceberg", "t", "--table", "a.b"], "pyarrow: pip install 'tidelog[iceberg]'"),
        (
            "deltalake",
            ["export", "t", "--table-format", "delta", "--to", "lake"],
            "deltalake: pip install 'tidelog[export]'",
        ),
        (
            "fastavro",
            ["export", "t", "--to", "lake", "--value-format", "registry"],
            "fastavro: pip install 'tidelog[export]'",
        ),
        (
            "google",
            ["export", "t", "--to", "lake", "--value-format", "protobuf", "--schema", __file__],
            "google.protobuf: pip install 'tidelog[export]'",
        ),
    ],
    ids=["catalog", "columns", "table", "values", "messages"],
)
def test_a_command_names_the_extra_that_it_lacks(
    tmp_path: Path, hidden: str, arguments: list[str], needed: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog_cli", "job", *arguments],
        env=environment_without(tmp_path / "hidden", hidden),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert (ended.returncode, ended.stderr) == (1, f"tidelog: this needs {needed}\n")
