"""A node whose files were replaced starts no process of another version for its batches and logs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tidelog_core.compaction.sealed_files import CleanedGroup
from tidelog_core.config import TopicConfig
from tidelog_core.erasure.log_files import ErasingTask
from tidelog_core.records.batch import Record, build_batch
from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.compaction.rewriter_process import rewrite
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.inspection.messages import (
    Checked,
    CheckJob,
    FramesFound,
    FramesJob,
    SchemaBegan,
    SearchJob,
)
from tidelog_node.inspection.schema_checks import SchemaChecks
from tidelog_node.inspection.schema_messages import (
    NamesJob,
    SchemaSource,
    TooCostly,
    ValuesChecked,
    ValuesJob,
)
from tidelog_node.inspection.worker_process import NotInspected
from tidelog_node.node_health import NodeHealth
from tidelog_node.processes import worker_version
from tidelog_node.processes.worker_version import (
    NODE_VERSION,
    OTHER_VERSION,
    OTHER_VERSION_STATUS,
    PROTOCOL,
    OtherVersion,
    VersionWatch,
)

from tests.support.message_forms import fields_of

EARLIER = "0.0.1/1"
NOW_MS = time.time_ns() // 1_000_000
CHILDREN = {
    "tidelog_node.inspection.worker": [],
    "tidelog_node.inspection.schema_worker": [str(640 << 20)],
    "tidelog_node.compaction.rewriter": [],
}


@pytest.mark.parametrize("module", CHILDREN)
@pytest.mark.parametrize("named", [[f"--node-version={EARLIER}"], [], ["--of-the-future=1"]])
def test_a_process_that_another_version_starts_reads_nothing(module: str, named: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *named, *CHILDREN[module]],
        input=b"what this version cannot read",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == OTHER_VERSION_STATUS
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("module", CHILDREN)
def test_a_process_of_the_same_version_reads_its_jobs(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, f"--node-version={NODE_VERSION}", *CHILDREN[module]],
        input=b"\0\0\0\4none",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"UnpicklingError" in done.stderr


async def inspects(health: NodeHealth, _: Path) -> Callable[[], Awaitable[None]]:
    inspector = BatchInspector(health)
    batch = memoryview(bytearray(build_batch([Record(0, NOW_MS, b"k", b"v", ())])))

    async def check() -> None:
        try:
            await inspector.check(batch, TopicConfig(), now_ms=NOW_MS, host="h")
        finally:
            await inspector.close()

    return check


async def checks_schemas(health: NodeHealth, _: Path) -> Callable[[], Awaitable[None]]:
    checks = SchemaChecks(health)
    schema = SchemaSource(1, "PROTOBUF", 'syntax = "proto3"; message A { int32 b = 1; }', ())

    async def names() -> None:
        try:
            assert await checks.names(schema, host="h") == ["A"]
        finally:
            await checks.close()

    return names


async def rewrites(health: NodeHealth, folder: Path) -> Callable[[], Awaitable[None]]:
    versions = VersionWatch(health, "rewriter")
    task = ErasingTask(
        directory=folder,
        segments=(),
        up_to=0,
        key_sha256=b"",
        aborted=(),
        index_interval_bytes=1,
    )
    job = RewriterJob(task, 1 << 20)

    async def run() -> None:
        async with contextlib.aclosing(rewrite(job, versions)) as messages:
            assert [type(message) async for message in messages] == [RewriteEnd]

    return run


Make = Callable[[NodeHealth, Path], Awaitable[Callable[[], Awaitable[None]]]]
KINDS = pytest.mark.parametrize(
    ("make", "name"),
    [(inspects, "inspection worker"), (checks_schemas, "schema worker"), (rewrites, "rewriter")],
    ids=["inspection", "schemas", "rewriter"],
)


@KINDS
async def test_a_node_whose_files_were_replaced_says_that_it_has_to_be_restarted(
    tmp_path: Path,
    make: Make,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = NodeHealth()
    do_job = await make(health, tmp_path)
    with monkeypatch.context() as loaded:  # This process is the earlier program.
        loaded.setattr(worker_version, "NODE_VERSION", EARLIER)
        with pytest.raises((NotInspected, OtherVersion), match="restart the node"):
            await do_job()
    (fault,) = health.reasons
    assert fault.name == OTHER_VERSION
    assert f"its {name} is of another version" in fault.detail
    for _ in range(3):  # The next process would serve by now, and is not started for a while.
        with pytest.raises((NotInspected, OtherVersion), match="restart the node"):
            await do_job()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in said] == ["process of the node cannot serve"]


@KINDS
async def test_a_node_goes_on_once_the_files_that_it_was_loaded_from_are_back(
    tmp_path: Path, make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_version, "OTHER_VERSION_DELAY_S", 0.0)
    health = NodeHealth()
    do_job = await make(health, tmp_path)
    with monkeypatch.context() as loaded:
        loaded.setattr(worker_version, "NODE_VERSION", EARLIER)
        with pytest.raises((NotInspected, OtherVersion), match=name):
            await do_job()
    assert not health.is_well
    await do_job()
    assert health.is_well


# The digests of the messages' fields, by the number of the protocol from which on they have them. A
# change needs another number. The settings of topics, which a job has, are not looked at.
FORMS = {3: "a77cd22ef2e750d6"}
MESSAGES = (
    *(Checked, SearchJob, FramesJob, FramesFound, ValuesJob, ValuesChecked, NamesJob, SchemaBegan),
    *(TooCostly, RewriterJob, CleanedGroup, RewriteEnd),
)


def test_messages_have_the_form_of_their_protocol() -> None:
    forms = sorted(dict(_forms()).items())
    found = hashlib.sha256(json.dumps(forms).encode()).hexdigest()[:16]
    number = max(known for known in FORMS if known <= PROTOCOL)
    assert FORMS[number] == found, f"raise PROTOCOL, and note the digest: {forms}"


def _forms() -> Iterator[tuple[str, list[str]]]:
    yield "CheckJob", list(CheckJob._fields)
    for message in MESSAGES:
        yield from fields_of(message)
