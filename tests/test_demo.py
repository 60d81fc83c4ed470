"""``make demo`` on a machine whose own python3 has none of Tidelog."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tools.places import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_finds_the_same_records_at_every_step() -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo"],
        cwd=ROOT,
        env=environment | {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        check=True,
    )
    words, _, summary = done.stdout.decode().rstrip().rpartition("demo: ok ")
    assert words
    assert json.loads(summary)["records"] == 336_776
