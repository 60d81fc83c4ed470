"""Message classes are made, and libraries executed, when they are first needed."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path

import pytest
from tidelog_node.processes import lazy_modules

CHILD = """
import sys
from tidelog_node.processes import lazy_modules
lazy_modules.install()
lazy_modules.install()
from tidelog_node import wiring
def made():
    kinds = {name: type(module).__name__ for name, module in sys.modules.items()
             if name.startswith("kio.schema.") and name.endswith((".request", ".response"))}
    return len(kinds), sum(kind == "module" for kind in kinds.values())
known, eager = made()
print(known > 10, eager < known / 3)
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
from tidelog_node.processes import lazy_modules
lazy_modules.install()
from kio.schema.describe_groups.v6 import response
from tidelog_node.requests.session import Session
from tidelog_node.dispatch import Dispatch
from tidelog_node.requests.routes import Route
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


LIBRARIES = """
import sys
from tidelog_node.processes import lazy_modules
lazy_modules.install()
import cramjam, lz4.frame, re2
from crc32c import crc32c
def executed():
    names = {"cramjam.cramjam", "lz4.frame._frame", "re2._re2", "importlib.metadata"}
    return sorted(names & sys.modules.keys())
print(executed(), hex(crc32c(b"123456789")))
print(re2.fullmatch("a+", "aa") is not None, executed())
print(lz4.frame.decompress(lz4.frame.compress(b"a")), hasattr(cramjam, "nothing"), executed())
"""


def test_libraries_are_executed_when_they_are_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        "[] 0xe3069283",  # the check value of CRC-32C
        "True ['re2._re2']",
        "b'a' False ['cramjam.cramjam', 'lz4.frame._frame', 're2._re2']",
    ], done.stderr[-2000:]


TYPE_OF_KIO = """
import sys
sys.modules["hypothesis"] = None  # kio imports it if it is installed, which it is not beside a node
from tidelog_node.processes import lazy_modules
lazy_modules.install()
from kio.serial import readers
import typing_extensions
def is_executed():
    return "_unexecuted" not in vars(typing_extensions)
kinds = [isinstance(one, readers.Buffer) for one in (b"", bytearray(), memoryview(b""), "")]
print(kinds, is_executed())
print(typing_extensions.Literal["a"], is_executed())
print(isinstance(b"", typing_extensions.Buffer), type(typing_extensions.Buffer).__name__)
"""


def test_a_type_that_kio_annotates_with_does_without_its_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TYPE_OF_KIO], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        "[True, True, True, False] False",
        "typing.Literal['a'] True",
        "True ABCMeta",
    ], done.stderr[-2000:]


def test_a_thread_waits_for_the_module_that_another_executes(tmp_path: Path) -> None:
    """The classes of a message would be half made otherwise."""
    is_half, may_go_on = threading.Event(), threading.Event()
    file = tmp_path / "slow.py"
    file.write_text("import gates\nfirst = 1\ngates.is_half.set()\ngates.go.wait(30)\nlast = 2\n")
    gates = types.ModuleType("gates")
    vars(gates).update(is_half=is_half, go=may_go_on)
    loader = lazy_modules.Later(SourceFileLoader("slow", str(file)))
    spec = ModuleSpec("slow", loader)
    slow = module_from_spec(spec)
    loader.exec_module(slow)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setitem(sys.modules, "gates", gates)
        one = threads.submit(getattr, slow, "last")
        assert is_half.wait(30)
        other = threads.submit(getattr, slow, "last")
        may_go_on.set()
        assert (one.result(30), other.result(30)) == (2, 2)
    assert type(slow) is types.ModuleType


def test_a_module_that_cannot_be_executed_fails_each_time(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise ImportError('a library is missing')\n")
    loader = lazy_modules.Later(SourceFileLoader("broken", str(file)))
    broken = module_from_spec(ModuleSpec("broken", loader))
    loader.exec_module(broken)
    for _ in range(2):
        with pytest.raises(ImportError, match="a library is missing"):
            _ = broken.name
