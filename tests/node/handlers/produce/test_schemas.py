"""Topics that ask for schemas: what is stored, what is refused, and what it may cost."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import (
    RECORD_NAME_STRATEGY,
    TOPIC_NAME_STRATEGY,
    TOPIC_RECORD_NAME_STRATEGY,
)
from tidelog_core.errors import MessageTooLarge, StoreUnavailable
from tidelog_core.metadata.schema_records import schema_subject_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility, Mode, Reference, Schema, SchemaType
from tidelog_core.schemas.values.codecs import open_codec
from tidelog_core.schemas.values.framing import VALUE_HEADER, framed
from tidelog_node.answers import HeldReply
from tidelog_node.diskless.gateway.gateway_topics import may_pass
from tidelog_node.handlers.produce import schemas as produce_schemas
from tidelog_node.handlers.produce import waits as produce_waits
from tidelog_node.handlers.produce.inspection import InspectionResults
from tidelog_node.handlers.produce.schemas import ProduceSchemas
from tidelog_node.inspection import schema_checks, schema_frames, schema_values
from tidelog_node.inspection.messages import RecordsRefused
from tidelog_node.inspection.schema_checks import SchemaChecks
from tidelog_node.inspection.schema_messages import (
    NO_TIME,
    SchemaSource,
    TooCostly,
    ValueLimits,
)
from tidelog_node.inspection.worker_process import NotInspected
from tidelog_node.registry import known_schemas
from tidelog_node.registry.known_schemas import KnownSchemas
from tidelog_node.wire.produce import ProduceRequest

from tests.node.replication.led_node import PRODUCE_VERSION, TOPIC, LedNode, led_node
from tests.support.request_contexts import context_of

USER = '{"type":"record","name":"User","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
VALUE = open_codec(SchemaType.AVRO, USER).encode({"id": 7})
ON = {"confluent.value.schema.validation": "true"}
FULL = {**ON, "tidelog.schema.validation.level": "full"}
SUBJECT = f"{TOPIC}-value"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[LedNode]:
    async with led_node(tmp_path) as running:
        yield running


async def register(
    node: LedNode, text: str = USER, subject: str = SUBJECT, kind: SchemaType = SchemaType.AVRO
) -> int:
    schema = Schema(kind, text)
    return (await SchemaRegistry(node.store).register(subject, Wanted(schema))).schema_id


def batch(*values: bytes | None, key: bytes | None = None, **more: Any) -> bytes:
    records = [Record(offset, 1_000, key, value, ()) for offset, value in enumerate(values)]
    return build_batch(records, **more)


def batch_of(*records: Record, **more: Any) -> bytes:
    """Return the records, whose offsets do not count."""
    found = [one._replace(offset=offset) for offset, one in enumerate(records)]
    return build_batch(found, **more)


async def send(node: LedNode, data: bytes) -> Any:
    answer = node.send_batch(data, acks=1)
    return await answer if isinstance(answer, asyncio.Future) else answer


async def checks_of(node: LedNode) -> SchemaChecks:
    """Return what works with the schemas of produced records."""
    return (await node.produce._waits._schemas.get())._checks


def outcome(answer: Any) -> tuple[ErrorCode, list[int]]:
    """Return the error, and the records that are named."""
    indexes = [one.batch_index for one in answer.record_errors]
    for one in answer.record_errors:
        assert one.batch_index_error_message
    return ErrorCode(answer.error_code), indexes


STORED = (ErrorCode.none, [])


async def test_values_of_the_subjects_schemas_are_stored_and_others_are_named(
    node: LedNode,
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    known, other = await register(node), await register(node, '"int"', "other-value")
    good = framed(known, VALUE)
    assert outcome(await send(node, batch(good, None, good))) == STORED
    for wrong in (
        b"",
        b"{}",
        VALUE,
        b"\1" + good[1:],
        framed(other, b"\2"),
        framed(99, VALUE),
        struct.pack(">bi", 0, -1),
    ):
        answer = await send(node, batch(good, wrong, good, wrong))
        assert outcome(answer) == (ErrorCode.invalid_record, [1, 3]), wrong
        assert "schema" in answer.error_message
    assert node.replica().log.log_end_offset == 3, "nothing of the batches is stored"


async def test_what_the_schema_cannot_read_is_refused_if_the_topic_says_so(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **ON)
    known = await register(node)
    broken = framed(known, b"\xff")
    assert outcome(await send(node, batch(broken))) == STORED, "the id is known"
    await node.configure(**FULL)
    assert outcome(await send(node, batch(framed(known, VALUE)))) == STORED
    answer = await send(node, batch(framed(known, VALUE), broken))
    assert outcome(answer) == (ErrorCode.invalid_record, [1])
    assert "ends in the middle" in answer.record_errors[0].batch_index_error_message


PROTO = 'syntax = "proto3"; package shop; message A { string s = 1; } message B { A a = 1; }'
JSON = '{"type":"object","required":["id"],"properties":{"id":{"$ref":"id.json"}}}'


async def test_full_validation_knows_every_language_and_references(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **FULL)
    proto = await register(node, PROTO, SUBJECT, SchemaType.PROTOBUF)
    registry = SchemaRegistry(node.store)
    await registry.register("id", Wanted(Schema(SchemaType.JSON, '{"type":"integer"}')))
    none = RegistryConfig(Compatibility.NONE)
    await RegistrySettings(registry).set_config(SUBJECT, none)
    schema = Schema(SchemaType.JSON, JSON, (Reference("id.json", "id", 1),))
    of_json = (await registry.register(SUBJECT, Wanted(schema))).schema_id
    good = [
        framed(proto, b"\0\x0a\x01a"),
        framed(proto, b"\2\2\x0a\x02\x0a\x00"),
        framed(of_json, b'{"id":1}'),
    ]
    assert outcome(await send(node, batch(*good))) == STORED
    bad = [framed(proto, b"\0\x0a\x05a"), framed(proto, b"\2\x08"), framed(of_json, b'{"id":"a"}')]
    assert outcome(await send(node, batch(*good, *bad))) == (ErrorCode.invalid_record, [3, 4, 5])


async def test_keys_are_validated_by_themselves(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **{"confluent.key.schema.validation": "true"})
    known = await register(node, '"long"', f"{TOPIC}-key")
    assert outcome(await send(node, batch(b"any", key=framed(known, b"\2")))) == STORED
    assert outcome(await send(node, batch(b"any", key=None))) == STORED
    assert outcome(await send(node, batch(b"any", key=b"k"))) == (ErrorCode.invalid_record, [0])


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [(RECORD_NAME_STRATEGY, "shop.User"), (TOPIC_RECORD_NAME_STRATEGY, f"{TOPIC}-shop.User")],
    ids=["record", "topic-record"],
)
async def test_subjects_may_be_named_after_records(
    node: LedNode, strategy: str, subject: str
) -> None:
    await node.create_topic(
        replicas=(1,), **ON, **{"confluent.value.subject.name.strategy": strategy}
    )
    known, elsewhere = await register(node, USER, subject), await register(node, '"int"', SUBJECT)
    assert outcome(await send(node, batch(framed(known, VALUE)))) == STORED
    refused = (ErrorCode.invalid_record, [0])
    assert outcome(await send(node, batch(framed(elsewhere, b"\2")))) == refused


async def test_a_refused_batch_does_not_advance_its_producers_sequence(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **ON)
    known = await register(node)
    producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}

    async def sent(value: bytes, sequence: int) -> ErrorCode:
        data = batch(value, base_sequence=sequence, **producer)
        return outcome(await send(node, data))[0]

    good = framed(known, VALUE)
    assert await sent(good, 0) is ErrorCode.none
    assert await sent(b"wrong", 1) is ErrorCode.invalid_record
    assert await sent(good, 2) is ErrorCode.out_of_order_sequence_number
    assert await sent(good, 1) is ErrorCode.none
    assert await sent(good, 1) is ErrorCode.none, "a duplicate"
    assert node.replica().log.log_end_offset == 2


async def test_compressed_and_large_batches_are_looked_into_by_the_worker(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **FULL)
    known = await register(node)
    good = framed(known, VALUE)
    for codec in (CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP):
        assert outcome(await send(node, batch(good, good, compression=codec))) == STORED
    many = [good] * 3_000
    assert outcome(await send(node, batch(*many))) == STORED
    answer = await send(node, batch(*many, b"x", compression=CompressionType.ZSTD))
    assert outcome(answer) == (ErrorCode.invalid_record, [3_000])
    assert len((await send(node, batch(*([b"x"] * 3_000)))).record_errors) == 100


async def test_batches_that_expand_or_have_too_many_records_are_refused(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **FULL)
    known = await register(node, '"bytes"')
    zeros = framed(known, b"\x80\x80\x80\x22" + bytes(34 << 20))
    answer = await send(node, batch(zeros, compression=CompressionType.ZSTD))
    assert outcome(answer)[0] is ErrorCode.message_too_large
    many = [framed(known, b"\0")] * (schema_frames.RECORDS_MAX + 1)
    answer = await send(node, batch(*many, compression=CompressionType.ZSTD))
    assert outcome(answer)[0] is ErrorCode.message_too_large, "the client splits it"
    ids = [framed(number, b"") for number in range(1, 100)]
    answer = await send(node, batch(*ids))
    assert outcome(answer)[0] is ErrorCode.invalid_record
    assert "more than 64 schemas" in answer.error_message
    assert node.replica().log.log_end_offset == 0


def with_headers(value: bytes | None, *headers: bytes | None, name: str = VALUE_HEADER) -> Record:
    return Record(0, 1_000, None, value, [(name, one) for one in headers])


def guid_of(text: str, kind: SchemaType = SchemaType.AVRO) -> bytes:
    """Return the header that names a schema."""
    return b"\1" + UUID(Schema(kind, text).guid).bytes


@pytest.mark.parametrize("level", ["id", "full"])
async def test_a_schema_may_be_named_in_a_header(node: LedNode, level: str) -> None:
    """As newer serializers do it: the value is the payload alone."""
    await node.create_topic(replicas=(1,), **{**ON, "tidelog.schema.validation.level": level})
    known, other = await register(node), await register(node, '"int"', "other-value")
    header, by_id = guid_of(USER), framed(known, b"")
    good = [
        with_headers(VALUE, header),
        with_headers(VALUE, by_id),
        with_headers(VALUE, header, header),
        with_headers(framed(known, VALUE), None),
        with_headers(None, b"strange"),
        with_headers(framed(known, VALUE), b"x", name="__key_schema_id"),
    ]
    assert outcome(await send(node, batch_of(*good))) == STORED
    many = [with_headers(VALUE, header)] * 3_000
    assert outcome(await send(node, batch_of(*many))) == STORED, "in the worker too"
    for wrong in (
        with_headers(VALUE, b""),
        with_headers(VALUE, b"\1"),
        with_headers(framed(known, VALUE), header[:-1]),
        with_headers(VALUE, b"\1" + bytes(16)),
        with_headers(VALUE, guid_of('"int"')),
        with_headers(VALUE, framed(other, b"")),
        with_headers(VALUE, header, guid_of('"int"')),  # Readers would differ.
        with_headers(VALUE, header, None),
        with_headers(VALUE),
    ):
        answer = await send(node, batch_of(good[0], wrong, good[1], wrong))
        assert outcome(answer) == (ErrorCode.invalid_record, [1, 3]), wrong
        assert "schema" in answer.error_message
    assert node.replica().log.log_end_offset == 3_006


async def imported(
    node: LedNode,
    subject: str,
    schema_id: int,
    text: str = USER,
    kind: SchemaType = SchemaType.AVRO,
) -> None:
    """Register the schema under an id of one's own, as an import from another registry does."""
    registry = SchemaRegistry(node.store)
    await RegistrySettings(registry).set_mode("", Mode.IMPORT, force=True)
    await registry.register(subject, Wanted(Schema(kind, text), schema_id=schema_id))


@pytest.mark.parametrize("level", ["id", "full"])
async def test_a_schema_with_several_ids_is_found_by_its_guid_in_each_subject(
    node: LedNode, level: str
) -> None:
    await node.create_topic(replicas=(1,), **{**ON, "tidelog.schema.validation.level": level})
    for subject, schema_id in (("first", 30), (SUBJECT, 50), ("last", 70)):
        await imported(node, subject, schema_id)
    header = guid_of(USER)
    good = [with_headers(VALUE, header), with_headers(framed(50, VALUE))]
    assert outcome(await send(node, batch_of(*good))) == STORED
    for other in (30, 70):
        answer = await send(node, batch_of(*good, with_headers(framed(other, VALUE))))
        assert outcome(answer) == (ErrorCode.invalid_record, [2])


@pytest.mark.parametrize("strategy", [TOPIC_NAME_STRATEGY, RECORD_NAME_STRATEGY])
async def test_an_id_that_a_schema_gets_later_counts_for_its_guid(
    node: LedNode, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(known_schemas, "MISSING_SECONDS", 0.0)
    named = {"confluent.value.subject.name.strategy": strategy}
    await node.create_topic(replicas=(1,), **ON, **named)
    subject = SUBJECT if strategy == TOPIC_NAME_STRATEGY else "shop.User"
    await imported(node, "elsewhere", 30)
    data = batch_of(with_headers(VALUE, guid_of(USER)))
    assert outcome(await send(node, data)) == (ErrorCode.invalid_record, [0])
    await imported(node, subject, 50)
    assert outcome(await send(node, data)) == STORED


async def test_values_with_headers_are_read_with_their_schemas(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **FULL)
    await register(node, PROTO, SUBJECT, SchemaType.PROTOBUF)
    header = guid_of(await stored_text(node, 1), SchemaType.PROTOBUF)
    first, second = header + b"\0", header + b"\2\2"
    good = [with_headers(b"\x0a\x01a", first), with_headers(b"\x0a\x02\x0a\x00", second)]
    assert outcome(await send(node, batch_of(*good))) == STORED
    bad = [
        with_headers(b"\x0a\x05a", first),
        with_headers(b"\0\x0a\x01a", header),  # The place must be in the header.
        with_headers(b"\x0a\x01a", first + b"\0"),
    ]
    answer = await send(node, batch_of(*good, *bad))
    assert outcome(answer) == (ErrorCode.invalid_record, [2, 3, 4])


async def stored_text(node: LedNode, schema_id: int) -> str:
    return (await SchemaRegistry(node.store).schema(schema_id)).text


async def test_a_schema_that_headers_name_is_looked_up_once(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    data = batch_of(with_headers(VALUE, guid_of(USER)))
    monkeypatch.setattr(known_schemas, "MISSING_SECONDS", 0.0)
    assert outcome(await send(node, data)) == (ErrorCode.invalid_record, [0])
    await register(node)
    assert outcome(await send(node, data)) == STORED
    reads: list[str] = []
    get = node.store.get

    async def counted(key: Any) -> Any:
        if key.collection.startswith("schema-"):
            reads.append(key.collection)
        return await get(key)

    monkeypatch.setattr(node.store, "get", counted)
    for _ in range(5):
        assert outcome(await send(node, data)) == STORED
    assert reads == []


async def test_schemas_are_looked_up_once_and_found_when_they_are_new(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    reads: list[str] = []
    get = node.store.get

    async def counted(key: Any) -> Any:
        if key.collection.startswith("schema-"):
            reads.append(key.collection)
        return await get(key)

    monkeypatch.setattr(node.store, "get", counted)
    unknown = batch(framed(1, VALUE))
    answers = await asyncio.gather(*(send(node, unknown) for _ in range(20)))
    assert {outcome(one)[0] for one in answers} == {ErrorCode.invalid_record}
    assert len(reads) == 1
    monkeypatch.setattr(known_schemas, "MISSING_SECONDS", 0.0)
    first = await register(node)
    assert first == 1
    assert outcome(await send(node, unknown)) == STORED
    reads.clear()
    for _ in range(5):
        assert outcome(await send(node, unknown)) == STORED
    assert reads == []
    second = await register(node, USER.replace("]}", ',{"name":"a","type":"int","default":0}]}'))
    assert outcome(await send(node, batch(framed(second, VALUE + b"\0")))) == STORED


async def test_a_deleted_version_counts_no_more_after_a_while(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    data = batch(framed(await register(node), VALUE))
    assert outcome(await send(node, data)) == STORED
    registry = SchemaRegistry(node.store)
    await SchemaDeletion(registry).delete_subject(SUBJECT, is_permanent=False)
    for name in ("KEPT_SECONDS", "MISSING_SECONDS"):
        monkeypatch.setattr(known_schemas, name, 0.0)
    assert outcome(await send(node, data)) == (ErrorCode.invalid_record, [0])


async def test_a_schema_that_takes_years_ends_its_batch_and_no_other(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each choice is one between two of the next: a value that fits none is tried 2⁶⁰ times."""
    monkeypatch.setattr(schema_checks, "LIMITS", ValueLimits(base_seconds=0.3))
    monkeypatch.setattr(known_schemas, "MISSING_SECONDS", 0.0)
    await node.create_topic(replicas=(1,), **FULL)
    choices: dict[str, Any] = {"D0": {"type": "integer"}}
    for number in range(60):
        choice = {"$ref": f"#/definitions/D{number}"}
        choices[f"D{number + 1}"] = {"anyOf": [choice, choice]}
    text = json.dumps({"definitions": choices, "$ref": "#/definitions/D60"})
    known = await register(node, text, SUBJECT, SchemaType.JSON)
    answer = await send(node, batch(framed(known, b'"x"')))
    assert outcome(answer) == (ErrorCode.invalid_record, [0])
    assert f"schema {known} is refused" in answer.error_message
    answer = await send(node, batch(framed(known, b"1")))
    assert outcome(answer) == (ErrorCode.invalid_record, [0]), "nobody pays for it again"
    none = RegistryConfig(Compatibility.NONE)
    await RegistrySettings(SchemaRegistry(node.store)).set_config(SUBJECT, none)
    other = await register(node, '{"type":"integer"}', SUBJECT, SchemaType.JSON)
    assert outcome(await send(node, batch(framed(other, b"1")))) == STORED


async def test_a_store_that_is_away_has_the_client_come_again(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    data = batch(framed(await register(node), VALUE))
    get = node.store.get

    async def away(key: Any) -> Any:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(node.store, "get", away)
    assert outcome(await send(node, data)) == (ErrorCode.request_timed_out, [])
    monkeypatch.setattr(node.store, "get", get)
    assert outcome(await send(node, data)) == STORED


async def test_no_batch_is_stored_before_an_earlier_one_that_nobody_looked_at(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log knows nothing of the producer yet, and would take any sequence as its first one."""
    await node.create_topic(replicas=(1,), **ON)
    good = framed(await register(node), VALUE)

    async def sent(sequence: int) -> ErrorCode:
        producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
        return outcome(await send(node, batch(good, base_sequence=sequence, **producer)))[0]

    async def away(key: Any) -> Any:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(node.store, "get", away)
        assert await sent(0) is ErrorCode.request_timed_out
    assert await sent(1) is ErrorCode.request_timed_out
    assert await sent(0) is ErrorCode.none
    assert await sent(1) is ErrorCode.none
    assert node.replica().log.log_end_offset == 2


async def test_no_batch_is_stored_before_an_earlier_one_for_which_there_was_no_room(
    node: LedNode,
) -> None:
    await node.create_topic(replicas=(1,), **ON)
    good = framed(await register(node), VALUE)

    async def sent(sequence: int) -> ErrorCode:
        producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
        return outcome(await send(node, batch(good, base_sequence=sequence, **producer)))[0]

    held = node.produce._waits._held
    assert held.take("another", produce_waits.HELD_BYTES_MAX)
    assert await sent(0) is ErrorCode.request_timed_out
    held.give_back("another", produce_waits.HELD_BYTES_MAX)
    assert await sent(1) is ErrorCode.request_timed_out
    assert [await sent(0), await sent(1)] == [ErrorCode.none] * 2


async def test_many_batches_of_a_request_give_others_a_turn_between_them(node: LedNode) -> None:
    await node.create_topic(replicas=(1,), **ON)
    records = memoryview(bytearray(batch(*([None] * 100), key=b"0123456789")))
    partitions: list[tuple[int, memoryview | None]] = [(0, records)] * 50
    request = ProduceRequest(None, -1, 30_000, [(TOPIC.encode(), partitions)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    reply = node.produce.handle(request, context_of(PRODUCE_VERSION, api_key=0))
    assert isinstance(reply, HeldReply)
    await reply
    counting.cancel()
    assert turns >= 50
    assert node.replica().log.log_end_offset == 5_000


async def test_many_headers_are_read_by_the_worker(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of 64 KiB may have 32,768 headers, and each costs time."""
    await node.create_topic(replicas=(1,), **ON)
    good = framed(await register(node), VALUE)
    lengths: list[int] = []
    frames = node.inspector.frames

    async def counted(records: memoryview, parts: tuple[str, ...], *, host: str) -> Any:
        lengths.append(len(records))
        return await frames(records, parts, host=host)

    monkeypatch.setattr(node.inspector, "frames", counted)
    for count in (5_000, 20_000):
        record = Record(0, 1_000, None, good, (("", None),) * count)
        assert outcome(await send(node, build_batch([record]))) == STORED
    assert len(lengths) == 1
    assert lengths[0] > 40_000


async def test_a_batch_that_is_refused_for_another_reason_stays_refused(node: LedNode) -> None:
    """Its schemas were not looked at, and the settings may change until it is appended."""
    replica = await node.create_topic(replicas=(1,), **ON)
    records = memoryview(bytearray(batch(b"x")))
    partitions: list[tuple[int, memoryview | None]] = [(0, records)]
    request = ProduceRequest(None, -1, 30_000, [(TOPIC.encode(), partitions)])
    results = InspectionResults(is_of_copy=True)
    results.note(0, replica.config, MessageTooLarge("it was too large"))
    schemas = ProduceSchemas(node.context, node.inspector)
    await schemas.check(request, node.replicas.led_by_name, results, host="h")
    with pytest.raises(MessageTooLarge):
        results.require_schemas(0)


async def test_the_subject_of_a_record_counts_as_soon_as_it_has_the_schema(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_schemas, "MISSING_SECONDS", 0.0)
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    data = batch(framed(await register(node, USER, "elsewhere"), VALUE))
    assert outcome(await send(node, data)) == (ErrorCode.invalid_record, [0])
    await register(node, USER, "shop.User")
    assert outcome(await send(node, data)) == STORED


def proto_of(count: int) -> tuple[str, list[str]]:
    """Return a file with messages, and their names in order."""
    names = [f"M{number:03}" for number in range(count)]
    messages = " ".join(f"message {name} {{ string s = 1; }}" for name in names)
    return f'syntax = "proto3"; package shop; {messages}', [f"shop.{name}" for name in names]


async def test_the_last_of_many_subjects_of_a_schema_counts_by_its_id(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have the same file under another id, or have deleted it."""
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    text, names = proto_of(40)
    for name in names[:12]:
        await imported(node, name, 30, text, SchemaType.PROTOBUF)
    for name in names[12:]:
        await imported(node, name, 50, text, SchemaType.PROTOBUF)
    deletion = SchemaDeletion(SchemaRegistry(node.store))
    for name in names[12:-1]:
        await deletion.delete_subject(name, is_permanent=False)
    data = batch(framed(50, b"\0\n\1a"))
    assert outcome(await send(node, data)) == STORED
    await deletion.delete_subject(names[-1], is_permanent=False)
    for name in ("KEPT_SECONDS", "MISSING_SECONDS"):
        monkeypatch.setattr(known_schemas, name, 0.0)
    assert outcome(await send(node, data)) == (ErrorCode.invalid_record, [0])


async def test_a_schema_of_too_many_subjects_is_refused_and_the_limit_named(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_schemas, "CANDIDATES_MAX", 3)
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    text, names = proto_of(4)
    for name in names:
        known = await register(node, text, name, SchemaType.PROTOBUF)
    deletion = SchemaDeletion(SchemaRegistry(node.store))
    for name in names[:-1]:
        await deletion.delete_subject(name, is_permanent=False)
    answer = await send(node, batch(framed(known, b"\0\n\1a")))
    assert outcome(answer) == (ErrorCode.invalid_record, [0])
    assert "the first 3 of 4 subjects" in answer.error_message


async def test_all_messages_of_a_large_file_may_name_its_subject(node: LedNode) -> None:
    strategy = {"confluent.value.subject.name.strategy": TOPIC_RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    text, names = proto_of(1_100)
    known = await register(node, text, f"{TOPIC}-{names[0]}", SchemaType.PROTOBUF)
    assert outcome(await send(node, batch(framed(known, b"\0\n\1a")))) == STORED
    known = await register(node, proto_of(3)[0], f"{TOPIC}-{names[0]}-other", SchemaType.PROTOBUF)
    refused = outcome(await send(node, batch(framed(known, b"\0\n\1a"))))
    assert refused == (ErrorCode.invalid_record, [0])


async def test_a_file_with_too_many_names_is_refused_where_they_count(node: LedNode) -> None:
    """Elsewhere its values are read, also of the same host."""
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **FULL, **strategy)
    long = "L" * 900
    inner = " ".join(f"message M{number} {{}}" for number in range(1_200))
    text = f'syntax = "proto3"; message A {{ string s = 1; }} message {long} {{ {inner} }}'
    known = await register(node, text, "A", SchemaType.PROTOBUF)
    data = batch(framed(known, b"\0\n\1a"))
    for _ in range(2):
        answer = await send(node, data)
        assert outcome(answer) == (ErrorCode.invalid_record, [0])
        assert "more than 1000000 characters" in answer.error_message
        assert "after the topic" in answer.error_message
    host = context_of(PRODUCE_VERSION).session.client_host
    assert (await checks_of(node))._costly.any_of(host, [known]) is None


async def test_a_malformed_subject_of_a_schema_hides_no_other_one(node: LedNode) -> None:
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    text, names = proto_of(3)
    for name in names:
        known = await register(node, text, name, SchemaType.PROTOBUF)
    damaged = Write(schema_subject_key(names[0]), {"versions": "many"}, ANY_VERSION)
    await node.store.commit([damaged])
    data = batch(framed(known, b"\0\n\1a"))
    assert outcome(await send(node, data)) == STORED


async def test_a_batch_is_not_refused_for_good_while_only_a_malformed_subject_may_have_its_schema(
    node: LedNode,
) -> None:
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    text, names = proto_of(2)
    for name in names:
        known = await register(node, text, name, SchemaType.PROTOBUF)
    await SchemaDeletion(SchemaRegistry(node.store)).delete_subject(names[1], is_permanent=False)
    damaged = Write(schema_subject_key(names[0]), {"versions": "many"}, ANY_VERSION)
    await node.store.commit([damaged])
    answer = await send(node, batch(framed(known, b"\0\n\1a")))
    assert outcome(answer) == (ErrorCode.request_timed_out, [])


async def test_a_schema_that_is_refused_to_one_host_keeps_its_names_for_others(
    node: LedNode,
) -> None:
    """Else the host would have the batches of others refused, one second after the other."""
    strategy = {"confluent.value.subject.name.strategy": RECORD_NAME_STRATEGY}
    await node.create_topic(replicas=(1,), **ON, **strategy)
    known = await register(node, USER, "shop.User")
    checks = await checks_of(node)
    schemas = KnownSchemas(node.store, checks.names, time.monotonic)
    schema = await schemas.find(known, host="one")
    assert schema is not None
    for host in ("many", context_of(PRODUCE_VERSION).session.client_host):
        checks._costly.note(host, TooCostly(known, NO_TIME))
    with pytest.raises(RecordsRefused, match=NO_TIME):
        await schemas.names(schema, host="many")
    assert await schemas.names(schema, host="one") == {"shop.User"}
    answer = await send(node, batch(framed(known, VALUE)))
    assert outcome(answer) == (ErrorCode.invalid_record, [0])
    assert NO_TIME in answer.error_message


async def test_the_texts_of_a_batchs_schemas_are_limited(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create_topic(replicas=(1,), **FULL)
    data = batch(framed(await register(node), VALUE))
    monkeypatch.setattr(produce_schemas, "CHARACTERS_MAX", len(USER) - 1)
    answer = await send(node, data)
    assert outcome(answer) == (ErrorCode.invalid_record, [0])
    assert f"its schemas have {len(USER)} characters" in answer.error_message
    monkeypatch.setattr(produce_schemas, "CHARACTERS_MAX", len(USER))
    assert outcome(await send(node, data)) == STORED


async def test_many_look_ups_of_one_host_delay_no_other(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the other asks for what the first host waits for."""
    wanted = await register(node)
    open_now = asyncio.Event()
    get, reads = node.store.get, []

    async def slow(key: Any) -> Any:
        reads.append(key)
        await open_now.wait()
        return await get(key)

    monkeypatch.setattr(node.store, "get", slow)
    schemas = KnownSchemas(node.store, (await checks_of(node)).names, time.monotonic)
    found: list[Any] = []

    async def find(schema_id: int, host: str) -> None:
        found.append((host, await schemas.find(schema_id, host=host)))

    many = [asyncio.create_task(find(one, "many")) for one in (*range(1_000, 1_500), wanted)]
    await asyncio.sleep(0)
    one = asyncio.create_task(find(wanted, "one"))
    while len(reads) < known_schemas.HOST_READS_MAX + 1:  # noqa: ASYNC110
        await asyncio.sleep(0)
    open_now.set()
    await one
    assert len(found) < 100
    assert [schema is not None for host, schema in found if host == "one"] == [True]
    await asyncio.gather(*many)


async def test_a_host_may_wait_for_so_many_look_ups(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_schemas, "HOST_WAITING_MAX", 5)
    schemas = KnownSchemas(node.store, (await checks_of(node)).names, time.monotonic)
    answers = await asyncio.gather(
        *(schemas.find(one, host="h") for one in range(1, 50)), return_exceptions=True
    )
    refused = [one for one in answers if isinstance(one, NotInspected)]
    assert len(refused) == 49 - 5 - known_schemas.HOST_READS_MAX
    assert await schemas.find(60, host="h") is None


async def test_the_texts_that_are_kept_are_limited(
    node: LedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await register(node, f'"{kind}"', kind) for kind in ("int", "long", "float", "bytes")]
    monkeypatch.setattr(known_schemas, "CHARACTERS_MAX", 13)
    schemas = KnownSchemas(node.store, (await checks_of(node)).names, time.monotonic)
    for one in (*ids, ids[0], ids[0]):
        assert await schemas.find(one, host="h") is not None
    assert list(schemas._schemas._found) == [ids[3], ids[0]]
    assert schemas._schemas._size == len('"bytes""int"')


def test_the_codecs_that_a_worker_keeps_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_values, "CODEC_CHARACTERS_MAX", 13)
    codecs = schema_values.Codecs()
    sources = [
        SchemaSource(number, "AVRO", f'"{kind}"', ())
        for number, kind in enumerate(("int", "long", "float", "bytes", "int"))
    ]
    for one in (*sources, sources[0]):
        codecs.of(one)
    assert list(codecs._known) == [sources[4], sources[0]]
    assert codecs._characters == len('"int""int"')


async def test_a_topic_that_begins_to_validate_while_a_batch_waits_stores_none_unseen(
    node: LedNode,
) -> None:
    await node.create_topic(replicas=(1,), **{"compression.type": "gzip"})
    waiting = node.send_batch(batch(*([b"x"] * 5_000), compression=CompressionType.ZSTD), acks=1)
    await node.configure(**ON)
    assert outcome(await waiting)[0] is not ErrorCode.none
    assert node.replica().log.log_end_offset == 0


async def test_no_gateway_takes_records_for_such_a_topic(node: LedNode) -> None:
    replica = await node.create_topic(replicas=(1,))
    assert may_pass(replica)
    await node.configure(**ON)
    assert not may_pass(node.replica())
