"""Message classes are made when they are first needed."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import sys
from tidelog_node import lazy_messages
lazy_messages.install()
lazy_messages.install()
from tidelog_node import wiring
def made():
    kinds = {name: type(module).__name__ for name, module in sys.modules.items()
             if name.startswith("kio.schema.") and name.endswith((".request", ".response"))}
    return len(kinds), sum(kind == "module" for kind in kinds.values())
known, eager = made()
print(known > 60, eager < known / 3)
from kio.index import load_request_schema
from kio.schema.describe_groups.v6 import request
schema = load_request_schema(15, 6)
print(made()[1] - eager, schema is request.DescribeGroupsRequest, schema.__version__)
"""


def test_a_node_makes_the_classes_of_messages_that_it_meets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == ["True True", "1 True 6"], done.stderr[-2000:]
