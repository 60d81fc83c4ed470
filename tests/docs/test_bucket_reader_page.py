"""The program of ``docs/bucket-reader.md`` is run, with a diskless topic in a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.chain_owner import chain_name
from tests.support.diskless_topic import DISKLESS, DisklessTopic, end_marker, numbered
from tests.support.tiered_cluster import CLUSTER_ID, TieredCluster
from tools.places import ROOT

PAGE = ROOT / "docs" / "bucket-reader.md"
URLS = {
    "metadata": "dynamodb://tidelog?region=eu-central-1",
    "objects": "s3://bucket/tidelog",
}


def test_the_program_of_the_page_reads_tier_and_tail(tmp_path: Path) -> None:
    cluster = TieredCluster(tmp_path)
    topic = cluster.create_topic("orders", configs=DISKLESS)
    diskless = DisklessTopic(topic, CLUSTER_ID, database=cluster.database, objects=cluster.objects)
    try:
        chain = chain_name(0)
        diskless.enter(chain)
        cluster.add_segment("orders", [numbered(0, 2)])
        diskless.commit(chain, numbered(0, 2), numbered(2, 3, producer_id=7))
        diskless.commit(chain, end_marker(3, 7, is_commit=False), numbered(4, 5))
    finally:
        diskless.close()
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for option, url in URLS.items():
        assert url in program
        program = program.replace(url, cluster.options[option])
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.stdout.splitlines(), ended.stderr) == (
        ["orders-0 has offsets [0, 5)", "0 b'v0'", "1 b'v1'", "4 b'v4'"],
        "",
    )
