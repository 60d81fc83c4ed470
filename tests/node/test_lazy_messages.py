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


LARGE_REQUEST = """
import asyncio, sys, threading
from tidelog_node import lazy_messages
lazy_messages.install()
from kio.schema.describe_groups.v6 import response
from tidelog_node.session import Session
from tidelog_node.dispatch import Dispatch
from tidelog_node.routes import Route
from tidelog_node.wire.messages import build
from tests.node.large_requests import describe_groups
async def answer(request, context):
    groups = tuple(build(response.DescribedGroup, group_id=id) for id in request.groups)
    return build(response.DescribeGroupsResponse, groups=groups)
made = []
def note(event, args):
    if event == "exec" and "/kio/schema/describe_groups/" in args[0].co_filename:
        made.append((threading.current_thread() is threading.main_thread(), args[0].co_filename))
sys.addaudithook(note)
async def main():
    route = Route(15, 0, 6, answer)
    dispatch = Dispatch((), (route,), elements_max=10_000, partitions_max=1)
    frame = memoryview(describe_groups(5_000))[4:]
    size, body = await dispatch(frame, Session("127.0.0.1", 1, "PLAINTEXT")).call()
    dispatch.close()
    print(len(body) > 5_000)
asyncio.run(main())
print(sorted(file.rpartition("/describe_groups/")[2] for is_loop, file in made if is_loop))
print([file for is_loop, file in made if not is_loop])
"""


def test_the_thread_of_large_requests_makes_no_classes() -> None:
    """The loop may need the same ones at that moment, and find them half made."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE_REQUEST],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    made = [f"v{version}/{kind}.py" for version in (0, 6) for kind in ("request", "response")]
    assert done.stdout.splitlines() == ["True", str(made), "[]"], done.stderr[-2000:]
