"""Schemas of strangers: what they may cost the process that works with them, and who pays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.errors import MessageTooLarge
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.schemas.values.framing import framed
from tidelog_node.inspection import costly_schemas, schema_checks, schema_frames, schema_values
from tidelog_node.inspection.costly_schemas import OF_HOST_MAX, REFUSED_SECONDS, CostlySchemas
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.inspection.messages import (
    FramesFound,
    Problem,
    RecordsRefused,
    SchemaBegan,
    SchemaUse,
)
from tidelog_node.inspection.schema_checks import SchemaChecks
from tidelog_node.inspection.schema_messages import (
    NO_MEMORY,
    NO_TIME,
    SchemaSource,
    TooCostly,
    ValueLimits,
    ValuesChecked,
    ValuesJob,
)
from tidelog_node.inspection.schema_values import Codecs, check_values
from tidelog_node.inspection.worker_process import NotInspected, WorkerProcess

# CPU time, so that the machine's load makes no difference. Nothing honest here takes a tenth.
LIMITS = ValueLimits(open_seconds=2.0, base_seconds=0.2, seconds_per_mib=20.0)
NUMBER = SchemaSource(1, "JSON", '{"type":"integer"}', ())
YEARS = 2


def takes_years() -> SchemaSource:
    """Each choice is one between two of the next: a value that fits none is tried 2⁶⁰ times."""
    choices: dict[str, Any] = {"D0": {"type": "integer"}}
    for number in range(60):
        choice = {"$ref": f"#/definitions/D{number}"}
        choices[f"D{number + 1}"] = {"anyOf": [choice, choice]}
    text = json.dumps({"definitions": choices, "$ref": "#/definitions/D60"})
    return SchemaSource(YEARS, "JSON", text, ())


def takes_gigabytes() -> SchemaSource:
    """Each of the patterns is compiled into nearly a mebibyte."""
    patterns = {
        f"p{number}": {"pattern": rf"\pL{{{number % 12 + 10}}}x{{{number}}}"}
        for number in range(3_000)
    }
    return SchemaSource(4, "JSON", json.dumps({"properties": patterns}), ())


def batch_of(*values: bytes) -> memoryview:
    records = [Record(offset, 1_000, None, value, ()) for offset, value in enumerate(values)]
    return memoryview(bytearray(build_batch(records)))


def uses(*schema_ids: int) -> list[SchemaUse]:
    return [SchemaUse("value", one, [index]) for index, one in enumerate(schema_ids)]


@asynccontextmanager
async def running() -> AsyncIterator[SchemaChecks]:
    checks = SchemaChecks()
    try:
        yield checks
    finally:
        await checks.close()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checks, "LIMITS", LIMITS)


async def check(
    checks: SchemaChecks, source: SchemaSource, *payloads: bytes, host: str = "h"
) -> list[Problem]:
    batch = batch_of(*(framed(source.schema_id, one) for one in payloads))
    found = FramesFound(uses(source.schema_id), [], max(map(len, payloads)))
    return await checks.values(batch, ("value",), (source,), found, host=host)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The jobs that processes were sent."""
    jobs: list[bytes] = []
    ask = WorkerProcess.ask

    async def counted(process: WorkerProcess, message: bytes, *given: Any, **named: Any) -> object:
        jobs.append(message)
        return await ask(process, message, *given, **named)

    monkeypatch.setattr(WorkerProcess, "ask", counted)
    return jobs


async def test_a_schema_that_takes_years_is_refused_and_no_later_batch_pays_again(
    asked: list[bytes],
) -> None:
    async with running() as checks:
        waiting = [check(checks, takes_years(), b'"x"') for _ in range(5)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, RecordsRefused) for one in found)
        with pytest.raises(RecordsRefused, match=f"schema {YEARS} is refused .*{NO_TIME}"):
            await check(checks, takes_years(), b'"x"')
        assert len(asked) == 1
        assert await check(checks, NUMBER, b"1", b'"x"') == [
            (
                1,
                'the value is no value of schema 1: it does not fit the schema: "x" is not of type'
                ' "integer"',
            )
        ]


async def test_a_schema_that_takes_gigabytes_is_refused(
    monkeypatch: pytest.MonkeyPatch, asked: list[bytes]
) -> None:
    monkeypatch.setattr(schema_checks, "DATA_BYTES_MAX", 160 << 20)
    monkeypatch.setattr(schema_checks, "LIMITS", LIMITS._replace(open_seconds=60.0))
    async with running() as checks:
        for _ in range(2):
            with pytest.raises(RecordsRefused, match=NO_MEMORY):
                await check(checks, takes_gigabytes(), b"{}")
        assert len(asked) == 1
        assert await check(checks, NUMBER, b"1") == []


async def test_a_value_that_takes_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes of JSON are an object of 64 in Python."""
    monkeypatch.setattr(schema_checks, "DATA_BYTES_MAX", 160 << 20)
    anything = SchemaSource(5, "JSON", "true", ())
    async with running() as checks:
        with pytest.raises(RecordsRefused, match=NO_MEMORY):
            await check(checks, anything, b"[" + b"{}," * 3_000_000 + b"0]")
        assert await check(checks, NUMBER, b"1") == []
        assert await check(checks, anything, b"1", host="other") == []


async def test_what_one_host_sends_has_no_schema_refused_to_others() -> None:
    async with running() as checks:
        with pytest.raises(RecordsRefused):
            await check(checks, takes_years(), b'"x"', host="many")
        assert await check(checks, takes_years(), b"1", host="one") == []


async def test_the_schema_is_blamed_that_took_the_time() -> None:
    sources = (NUMBER, takes_years(), NUMBER._replace(schema_id=7))
    values = [framed(1, b"1"), framed(YEARS, b'"x"'), framed(7, b"1"), framed(YEARS, b'"x"')]
    use = [SchemaUse("value", 1, [0]), SchemaUse("value", YEARS, [1, 3]), *uses(7)]
    found = FramesFound(use, [], 10)
    async with running() as checks:
        with pytest.raises(RecordsRefused) as refused:
            await checks.values(batch_of(*values), ("value",), sources, found, host="h")
        assert refused.value.record_indexes == (1, 3)
        assert await check(checks, sources[2], b"1") == []


async def test_a_client_that_hangs_up_does_not_hide_what_its_schema_costs() -> None:
    async with running() as checks:
        caller = asyncio.create_task(check(checks, takes_years(), b'"x"'))
        while not checks._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.gather(*checks._tasks)
        with pytest.raises(RecordsRefused, match=NO_TIME):
            await check(checks, takes_years(), b'"x"')


async def test_a_schema_that_the_worker_cannot_work_with_is_refused(asked: list[bytes]) -> None:
    """Else its producer would try again, and each attempt would start a process or two."""
    strange = SchemaSource(6, "XML", "<xml/>", ())
    async with running() as checks:
        for _ in range(2):
            with pytest.raises(RecordsRefused, match=schema_checks.FATAL):
                await check(checks, strange, b"1")
        assert len(asked) == 1
        assert await check(checks, NUMBER, b"1") == []


async def test_a_host_with_many_such_schemas_waits_whatever_it_sends(asked: list[bytes]) -> None:
    async with running() as checks:
        for number in range(OF_HOST_MAX):
            checks._costly.note("many", TooCostly(100 + number, NO_TIME))
        with pytest.raises(NotInspected, match="has to wait up to 5 minutes"):
            await check(checks, NUMBER, b"1", host="many")
        assert asked == []
        assert await check(checks, NUMBER, b"1", host="one") == []


async def test_batches_of_other_topics_are_inspected_while_a_schema_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for_ever = LIMITS._replace(base_seconds=1_000.0, seconds_max=1_000.0, run_seconds_max=1_000.0)
    monkeypatch.setattr(schema_checks, "LIMITS", for_ever)
    compacted = TopicConfig(cleanup_policy=("compact",))
    records = [Record(offset, 1_000, b"k", b"", ()) for offset in range(5_000)]
    batch = memoryview(bytearray(build_batch(records)))
    inspector, checks = BatchInspector(), SchemaChecks()
    inspector.close_with_it(checks.close)
    years = asyncio.create_task(check(checks, takes_years(), b'"x"'))
    try:
        while not checks._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)
        checked, _ = await inspector.check(batch, compacted, now_ms=1_000, host="h")
        assert checked is batch
        assert not years.done()
    finally:
        await inspector.close()
        await asyncio.gather(years, return_exceptions=True)


async def test_hosts_take_turns_within_a_batch(
    monkeypatch: pytest.MonkeyPatch, asked: list[bytes]
) -> None:
    monkeypatch.setattr(schema_checks, "LIMITS", LIMITS._replace(slice_seconds=0.0))
    done = []
    text = json.dumps("x" * schema_values.RUN_BYTES_MAX).encode()
    source = SchemaSource(6, "JSON", '{"type":"string"}', ())
    async with running() as checks:

        async def send(host: str, *payloads: bytes) -> None:
            assert await check(checks, source, *payloads, host=host) == []
            done.append(host)

        await asyncio.gather(send("many", *[text] * 6), send("one", b'"x"'))
    assert done == ["one", "many"]
    assert len(asked) == 7


async def test_a_large_value_that_takes_its_time_holds_up_only_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other schema can be worked with while it is checked, for ten seconds at most."""
    for_ever = LIMITS._replace(base_seconds=1_000.0, seconds_max=1_000.0, run_seconds_max=1_000.0)
    monkeypatch.setattr(schema_checks, "LIMITS", for_ever)
    large = json.dumps("x" * schema_checks.LARGE_BYTES).encode()
    text = SchemaSource(6, "JSON", '{"type":"string"}', ())
    async with running() as checks:
        years = asyncio.create_task(check(checks, takes_years(), large, host="many"))
        while not checks._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)
        late = asyncio.create_task(check(checks, text, large, host="late"))
        for host in ("many", "one"):
            assert await check(checks, text, b'"x"', host=host) == []
        assert not years.done()
        assert not late.done()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
    await asyncio.gather(years, return_exceptions=True)


async def test_a_value_that_takes_longer_than_one_may_is_refused_before_the_batchs_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = LIMITS._replace(base_seconds=1_000.0, seconds_max=1_000.0, run_seconds_max=0.2)
    monkeypatch.setattr(schema_checks, "LIMITS", limits)
    async with running() as checks:
        with pytest.raises(RecordsRefused, match=NO_TIME):
            await check(checks, takes_years(), b'"x"')


async def test_a_batch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_frames, "DECOMPRESSED_BYTES_MAX", 1_000)
    with pytest.raises(MessageTooLarge, match="take 1000: lower"):
        schema_frames.frames_of(batch_of(framed(1, bytes(1_000))), ("value",))


# -- the worker's side -------------------------------------------------------------------------


def job_of(*sources: SchemaSource, **more: Any) -> ValuesJob:
    return ValuesJob(0, ("value", "key"), sources, LIMITS._replace(slice_seconds=0.0), **more)


def mixed_batch() -> memoryview:
    """Three schemas in turn; every fifth value is wrong; a run has one value."""
    text = json.dumps("x" * schema_values.RUN_BYTES_MAX).encode()
    values = [framed(number % 3 + 1, b"{" if number % 5 == 0 else text) for number in range(12)]
    records = [
        Record(offset, 1_000, framed(1, b'"k"'), value, ()) for offset, value in enumerate(values)
    ]
    return memoryview(build_batch(records))


MIXED = (
    SchemaSource(1, "JSON", '{"type":"string"}', ()),
    SchemaSource(2, "JSON", '{"type":"string","minLength":1}', ()),
    SchemaSource(3, "JSON", '{"maxLength":70000}', ()),
)


def test_a_batch_that_is_checked_in_parts_has_the_same_problems() -> None:
    batch, codecs = mixed_batch(), Codecs()
    whole = check_values(batch, job_of(*MIXED)._replace(limits=LIMITS), codecs, lambda began: None)
    assert isinstance(whole, ValuesChecked)
    assert whole.next_start is None
    assert sorted(index for index, _ in whole.problems) == [0, 5, 10]
    problems: list[Problem] = []
    began: list[SchemaBegan] = []
    part = ValuesChecked([], 0, 0.0)
    parts = 0
    while part.next_start is not None:
        job = job_of(*MIXED, start=part.next_start, spent_seconds=part.spent_seconds)
        found = check_values(batch, job, codecs, began.append)
        assert isinstance(found, ValuesChecked)
        assert found.next_start is None or found.next_start > job.start
        part, parts = found, parts + 1
        problems += part.problems
    assert problems == whole.problems
    assert parts > 3
    assert {one.schema_id for one in began} == {1, 2, 3}


def test_what_a_schema_has_spent_counts_in_the_next_part_and_for_no_other_schema() -> None:
    batch, codecs = mixed_batch(), Codecs()
    spent = job_of(*MIXED, spent_seconds=100.0)
    assert check_values(batch, spent, codecs, lambda began: None) == TooCostly(1, NO_TIME)
    of_first = 12 + 4  # keys and values
    next_one = spent._replace(start=of_first, spent_seconds=0.0)
    assert isinstance(check_values(batch, next_one, codecs, lambda began: None), ValuesChecked)


def test_the_time_for_values_grows_with_their_size_up_to_a_limit() -> None:
    limits = ValueLimits()
    sizes = (0, 1 << 20, 32 << 20)
    assert [limits.allowed(size) for size in sizes] == [1.0, 5.0, 20.0]
    assert [limits.allowed_at_once(size) for size in sizes] == [1.0, 5.0, 10.0]


# -- what is remembered -------------------------------------------------------------------------


def test_costly_schemas_are_forgotten_after_a_while() -> None:
    now = [0.0]
    costly = CostlySchemas(lambda: now[0])
    costly.note("h", TooCostly(1, NO_TIME))
    now[0] = 10.0
    costly.note("h", TooCostly(2, NO_MEMORY))
    assert costly.any_of("h", [3, 2]) == TooCostly(2, NO_MEMORY)
    assert costly.any_of("other", [1, 2]) is None
    now[0] = REFUSED_SECONDS
    assert costly.any_of("h", [1]) is None
    assert costly.any_of("h", [2]) is not None
    now[0] = REFUSED_SECONDS + 10.0
    assert costly.any_of("h", [2]) is None
    assert costly._of_host == {}


def test_what_is_remembered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costly_schemas, "HOSTS_MAX", 2)
    costly = CostlySchemas(lambda: 0.0)
    for host in ("a", "b", "a", "c"):
        for number in range(OF_HOST_MAX + 5):
            costly.note(host, TooCostly(number, NO_TIME))
    assert list(costly._of_host) == ["a", "c"]
    assert all(len(one) == OF_HOST_MAX for one in costly._of_host.values())
    assert costly.has_too_many("a")
    assert not costly.has_too_many("b")
