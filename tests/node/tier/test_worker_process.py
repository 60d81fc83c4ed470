"""A worker's process executes libraries when it first uses them, as a node does."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import sys
from tidelog_node.tier import worker_process
from tidelog_node.processes.worker_version import version_argument
sys.argv = ["worker_process", version_argument(), "--help"]
try:
    worker_process.main()
except SystemExit as end:
    heavy = {"_hashlib", "_ssl", "cramjam.cramjam", "ctypes", "importlib.metadata", "inspect"}
    executed = {name for name, one in sys.modules.items() if "_unexecuted" not in vars(one)}
    print(end.code, "tidelog_node.tier.worker" in executed, sorted(heavy & executed))
"""


def test_a_worker_that_has_done_nothing_yet_has_executed_no_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines()[-1:] == ["0 True []"], done.stderr[-2000:]
