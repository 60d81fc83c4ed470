"""Messages are read as kio reads them, and whatever else comes costs an error and nothing more."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17 import response as fetch
from kio.schema.metadata.v9 import request as metadata
from kio.schema.offset_fetch.v9 import request as offset_fetch
from kio.serial import entity_reader
from tidelog_core.errors import MalformedMessage, TooManyElements
from tidelog_core.message_reader import ElementBudget, read_from, read_message
from tidelog_core.wire_messages import build, defaults_of, write_message

from tests.support.message_bytes import (
    HOSTILE_LENGTHS,
    all_schemas,
    broken,
    joined,
    random_message,
    varint,
    with_length,
)

MEMORY_OF_A_BYTE = 50
MEMORY_OF_A_MESSAGE = 32_768  # an error's path, and what reading takes for a while


@pytest.fixture(scope="module")
def schemas() -> list[Any]:
    """Every message in every version."""
    return all_schemas()


def seeds(request: pytest.FixtureRequest) -> Random:
    """Return random numbers that can be had again."""
    seed = Random().getrandbits(32)
    print(f"seed {seed} of {request.node.name}")
    return Random(seed)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Random numbers of this run."""
    return seeds(request)


def test_every_message_is_read_as_kio_reads_it(schemas: list[Any], random: Random) -> None:
    for schema in schemas:
        reads_as_kio(schema, random, messages=4)


def test_tagged_fields_that_nobody_knows_change_nothing(schemas: list[Any], random: Random) -> None:
    for schema in schemas:
        if schema.__flexible__:
            skips_strangers(schema, random, messages=4)


def test_no_broken_message_costs_more_than_an_error(schemas: list[Any], random: Random) -> None:
    frames = 0
    for schema in schemas:
        frames += survives(schema, random, messages=4, each=9)
    assert frames >= 20_000


def test_no_length_is_believed(schemas: list[Any], random: Random) -> None:
    """Every length of a message is made every hostile one, and the memory of it is measured."""
    with traced_memory():
        for schema in schemas:
            pieces = random_message(schema, random)
            lengths = [at for at, piece in enumerate(pieces) if piece.kind in ("compact", "int32")]
            for at in random.sample(lengths, min(len(lengths), 3)):
                costs_little(schema, with_length(pieces, at, random.choice(HOSTILE_LENGTHS)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_broken_message_of_a_million_costs_more_than_an_error(
    schemas: list[Any], random: Random
) -> None:
    frames = 0
    while frames < 1_000_000:
        for schema in schemas:
            reads_as_kio(schema, random, messages=2)
            skips_strangers(schema, random, messages=2)
            frames += survives(schema, random, messages=8, each=8)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_broken_message_of_many_takes_memory(schemas: list[Any], random: Random) -> None:
    with traced_memory():
        for schema in schemas:
            for _ in range(50):
                costs_little(schema, broken(random_message(schema, random), random))


def test_a_newer_class_gets_what_both_versions_have_and_defaults(random: Random) -> None:
    for api_key, version, newest in NEWER:
        schema, target = load_request_schema(api_key, version), load_request_schema(api_key, newest)
        for _ in range(10):
            data = joined(random_message(schema, random))
            read = read_message(cast("Any", schema), data, newest=target)
            assert type(read) is target
            assert_lifted(read_message(schema, data), read)


NEWER = [
    *((3, version, 13) for version in range(13)),
    *((9, version, 7) for version in range(1, 7)),
    *((11, version, 9) for version in range(9)),
    (19, 2, 7),
    (32, 1, 4),
    (68, 0, 1),
]


def assert_lifted(own: Any, lifted: Any) -> None:
    """Check that an entity is another one in its class."""
    for field in dataclasses.fields(lifted):
        value = getattr(lifted, field.name)
        if not hasattr(own, field.name):
            assert value == defaults_of(type(lifted))[field.name]
            continue
        had = getattr(own, field.name)
        if dataclasses.is_dataclass(value):
            assert_lifted(had, value)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            assert len(had) == len(value)
            for one, other in zip(had, value, strict=True):
                assert_lifted(one, other)
        else:
            assert value == had


# -- what is refused, by name --


def test_an_array_of_four_billion_topics_in_29_bytes_is_refused() -> None:
    body = b"\xff\xff\xff\xff\x0f\x00\x00\x00\x00"
    with traced_memory():
        costs_little(metadata.MetadataRequest, body)
    with pytest.raises(MalformedMessage) as caught:
        read_message(metadata.MetadataRequest, body)
    assert caught.value.field == "MetadataRequest.topics"
    assert caught.value.reason == "is said to have 4294967294 elements, in 4 bytes"
    assert caught.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"", "topics", "is cut off, or what follows it"),
        (b"\x02\x05ab", "topics.name", "is said to take 4 bytes, of at most 2"),
        (b"\x02\x00\x00\x00\x00\x00\x00", "topics.name", "is null"),
        (b"\x02\x03\xff\xfe\x00\x00\x00\x00\x00", "topics.name", "is not UTF-8"),
        (
            b"\xff\xff\xff\xff\xff\xff\x01",
            "topics",
            "has a varint of more than 5 bytes",
        ),
        (b"\x01\x00\x00\x00", "allow_auto_topic_creation", "is cut off, or what follows it"),
        (b"\x01\x00\x00\x00\x01\x05\x7f", "", "is said to take 127 bytes, of at most 0"),
    ],
)
def test_the_error_names_field_and_reason(body: bytes, field: str, reason: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        read_message(metadata.MetadataRequest, body)
    assert caught.value.reason == reason
    assert caught.value.field == ".".join(filter(None, ("MetadataRequest", field)))


def test_a_string_longer_than_kafka_reads_is_refused() -> None:
    """Kafka's clients refuse a compact string above 32,767 bytes, so nothing may send one."""
    for size, is_refused in ((32_767, False), (32_768, True)):
        body = b"\x02" + varint(size + 1) + b"x" * size + bytes(5)
        if is_refused:
            with pytest.raises(MalformedMessage):
                read_message(metadata.MetadataRequest, body)
        else:
            assert len(read_message(metadata.MetadataRequest, body).topics[0].name) == size


def test_a_tagged_field_of_another_size_than_its_tag_says_is_refused() -> None:
    schema = load_response_schema(18, 3)
    head = b"\x00\x00\x01" + bytes(4)
    good = head + b"\x01\x01\x08" + b"\x00" * 7 + b"\x05"
    assert cast("Any", read_message(schema, good)).finalized_features_epoch == 5
    for size in (7, 9):
        with pytest.raises(MalformedMessage, match="finalized_features_epoch has another size"):
            read_message(schema, head + b"\x01\x01" + bytes([size]) + b"\x00" * 9)


def test_four_billion_tagged_fields_end_where_the_bytes_end() -> None:
    body = b"\x01\x00\x00\x00" + b"\xff\xff\xff\xff\x0f" + b"\x00" * 99
    with pytest.raises(MalformedMessage):
        read_message(metadata.MetadataRequest, body)


def test_bytes_behind_a_message_are_ignored() -> None:
    body = b"\x01\x01\x00\x00\x00"
    message, end = read_from(metadata.MetadataRequest, body + b"more", 0)
    assert (message, end) == (read_message(metadata.MetadataRequest, body), len(body))


def test_a_bool_of_any_value_and_an_unknown_error_are_read_as_kafka_does() -> None:
    assert read_message(metadata.MetadataRequest, b"\x01\x05\x00\x00\x00").allow_auto_topic_creation
    response: Any = read_message(load_response_schema(12, 0), b"\x27\x0f")
    assert response.error_code is ErrorCode.unknown_server_error


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_message_is_read_from_any_buffer_and_keeps_none_of_it(kind: Any) -> None:
    topic = build(metadata.MetadataRequestTopic, name="t")
    body = write_message(metadata.MetadataRequest, build(metadata.MetadataRequest, topics=(topic,)))
    buffer = kind(b"head" + body)
    message = read_message(metadata.MetadataRequest, buffer, 4)
    assert message.topics == (topic,)


def test_records_are_views_if_they_may_be() -> None:
    records = bytes(range(256))
    partition = build(fetch.PartitionData, partition_index=3, high_watermark=7, records=records)
    topic = build(fetch.FetchableTopicResponse, topic_id=UUID(int=5), partitions=(partition,))
    message = build(fetch.FetchResponse, responses=(topic,))
    body = bytearray(write_message(fetch.FetchResponse, message))
    found = read_message(fetch.FetchResponse, body, has_views=True)
    view: Any = found.responses[0].partitions[0].records
    assert isinstance(view, memoryview)
    assert (bytes(view), view.obj) == (records, body)
    assert read_message(fetch.FetchResponse, bytes(body)) == message


def test_every_message_is_read_the_same_with_views(schemas: list[Any], random: Random) -> None:
    for schema in schemas[::4]:  # A reader is made for each, which takes its time.
        pieces = random_message(schema, random)
        for data in (joined(pieces), *(broken(pieces, random) for _ in range(9))):
            assert _outcome(schema, data, has_views=True) == _outcome(schema, data, has_views=False)


def _outcome(schema: Any, data: bytes, *, has_views: bool) -> Any:
    """Return the message or the text of its error."""
    try:
        return read_message(schema, data, has_views=has_views)
    except MalformedMessage as error:
        return str(error)


# -- budgets --


def offsets_of(*, topics: int, partitions: int) -> bytes:
    """Return an OffsetFetch of one group."""
    topic = build(
        offset_fetch.OffsetFetchRequestTopics, name="t", partition_indexes=tuple(range(partitions))
    )
    group = build(offset_fetch.OffsetFetchRequestGroup, group_id="g", topics=(topic,) * topics)
    message = build(offset_fetch.OffsetFetchRequest, groups=(group,))
    return write_message(offset_fetch.OffsetFetchRequest, message)


def test_a_budget_pays_for_the_elements_of_all_arrays() -> None:
    budget = ElementBudget(1000)
    read_message(offset_fetch.OffsetFetchRequest, offsets_of(topics=3, partitions=5), budget=budget)
    assert budget.left == 1000 - (1 + 3 + 3 * 5)
    read_message(offset_fetch.OffsetFetchRequest, offsets_of(topics=1, partitions=0), budget=budget)
    assert budget.left == 1000 - 19 - 2


def test_a_budget_pays_for_tagged_fields_too() -> None:
    body = b"\x01\x00\x00\x00" + b"\x05" + b"\x63\x00" * 5
    budget = ElementBudget(7)
    read_message(metadata.MetadataRequest, body, budget=budget)
    assert budget.left == 2
    with pytest.raises(TooManyElements):
        read_message(metadata.MetadataRequest, body, budget=budget)


def test_a_message_that_is_over_its_budget_is_refused_before_its_elements_are_made() -> None:
    data = offsets_of(topics=1, partitions=1_000_000)
    budget = ElementBudget(100_000)
    with pytest.raises(TooManyElements) as caught:
        read_message(offset_fetch.OffsetFetchRequest, data, budget=budget)
    assert caught.value.field == "OffsetFetchRequest.groups.topics.partition_indexes"
    assert caught.value.elements_max == 100_000
    assert budget.left == 100_000


def test_numbers_by_the_million_are_read() -> None:
    message = read_message(
        offset_fetch.OffsetFetchRequest, offsets_of(topics=2, partitions=100_000)
    )
    assert [topic.partition_indexes for topic in message.groups[0].topics] == [
        tuple(range(100_000))
    ] * 2


# -- the properties --


def reads_as_kio(schema: Any, random: Random, *, messages: int) -> None:
    """Check some valid messages against kio's own reader."""
    for _ in range(messages):
        data = joined(random_message(schema, random))
        expected, end = entity_reader(schema)(data, 0)
        assert read_from(schema, data, 0) == (expected, end), data.hex()


def skips_strangers(schema: Any, random: Random, *, messages: int) -> None:
    """Check that messages with unknown tagged fields are those without."""
    for _ in range(messages):
        seed = random.getrandbits(32)
        plain = joined(random_message(schema, Random(seed)))
        strange = joined(random_message(schema, Random(seed), strangers=random))
        expected = read_message(schema, plain)
        assert read_from(schema, strange, 0) == (expected, len(strange)), strange.hex()


def survives(schema: Any, random: Random, *, messages: int, each: int) -> int:
    """Read broken messages; return how many."""
    for _ in range(messages):
        pieces = random_message(schema, random, strangers=random)
        for _ in range(each):
            reads_or_refuses(schema, broken(pieces, random))
    return messages * each


def reads_or_refuses(schema: Any, data: bytes) -> None:
    """Read a message, or get the error that there is for it."""
    with suppress(MalformedMessage):
        _, end = read_from(schema, data, 0)
        assert end <= len(data)


def costs_little(schema: Any, data: bytes) -> None:
    """Check that reading a message takes no more memory than its size allows."""
    reads_or_refuses(schema, b"")  # so that the reader is there
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    reads_or_refuses(schema, data)
    cost = tracemalloc.get_traced_memory()[1] - before
    assert cost <= MEMORY_OF_A_MESSAGE + MEMORY_OF_A_BYTE * len(data), data.hex()


@contextmanager
def traced_memory() -> Iterator[None]:
    """Count the memory that is allocated within."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
