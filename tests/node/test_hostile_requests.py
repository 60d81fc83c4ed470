"""Bytes that no client should send: the node lives, and serves those who behave."""

from __future__ import annotations

import itertools
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3 import request as find
from kio.schema.metadata.v9 import request as metadata
from tidelog_core.message_schemas import load_request_schema
from tidelog_core.wire_messages import build
from tidelog_node.wire.primitives import ERROR_TEXT_LENGTH_MAX, TAGGED_FIELDS_MAX

from tests.support.batches import batch_of
from tests.support.message_bytes import broken, joined, random_message, varint
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request, encode, frame, milliseconds

AT_ONCE = 200  # connections
SECONDS_MAX = 30.0  # for what takes milliseconds on an idle machine
GROUP, TRANSACTION = 0, 1
MEMORY_GROWTH_MAX = 100_000_000
UNKNOWN_TAG = b"\x01\x8f\x4e\x03abc"  # one field, tag 9999, of three bytes

PRODUCE, FETCH, METADATA, JOIN_GROUP, SYNC_GROUP = 0, 1, 3, 11, 14
API_VERSIONS, CREATE_TOPICS, CREATE_PARTITIONS, SHARE_FETCH = 18, 19, 37, 78
# acks=0 has no answer, long polls and rebalances have one after a while.
MAY_BE_SILENT = {PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP, SHARE_FETCH}
MAKE_PARTITIONS = {METADATA, CREATE_TOPICS, CREATE_PARTITIONS}
# Names of what is there, words that mean something somewhere, and the longest texts there are.
TEXTS = (
    *("t", "t", "t", "g", "g", "", "consumer", "range", "uniform", "all", "1", "latest", "a b"),
    *("(", ":", "a" * 249, "x" * 32_767, "é" * 16_000),
)
FEW = (-1, 0, 1, 2, 3) * 4
TIMES_MS = (6000, 10_000, 30_000) * 2
CLIENT_IDS = (None, b"", b"test", b"\xff\xfe", b"x" * 32_767)


class Case(NamedTuple):
    """One request to send, and what it is for the messages of a failure."""

    api_key: int
    version: int
    data: bytes  # with its size


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here."""
    with NodeProcess(tmp_path_factory.mktemp("hostile") / "node") as process:
        admin = AdminClient({"bootstrap.servers": process.address})
        for made in admin.create_topics([NewTopic("t", 2, 1), NewTopic("friend", 1, 1)]).values():
            made.result(30)
        with WireClient(process.port) as client:
            for key_type in (GROUP, TRANSACTION):
                await_coordinator(client, key_type)
        yield process


def await_coordinator(client: WireClient, key_type: int) -> None:
    """Have the coordinators' topic made, so that requests get as far as they can."""
    request = find.FindCoordinatorRequest(key="g", key_type=key_type)
    deadline = time.monotonic() + SECONDS_MAX
    while client.call(request).error_code is not ErrorCode.none:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_29_bytes_that_name_four_billion_topics_do_not_stop_a_node(node: NodeProcess) -> None:
    packet = b"\0\0\0\x19\0\x03\0\x09\0\0\0\x01\0\x05chaos\0\xff\xff\xff\xff\x0f\0\0\0\0"
    assert len(packet) == 29
    with WireClient(node.port) as friend:
        before = node.rss_bytes()
        for _ in range(3):
            with WireClient(node.port) as client:
                client.send(packet)
                assert client.is_closed_by_node()
        assert friend.call(api_versions_request()).api_keys
        assert node.rss_bytes() - before < 10_000_000
    node.wait_logged("MetadataRequest.topics is said to have 4294967294 elements")


@pytest.mark.parametrize(("api_key", "version"), [(3, 9), (10, 3), (16, 3), (18, 3), (32, 4)])
def test_unknown_tagged_fields_are_skipped(node: NodeProcess, api_key: int, version: int) -> None:
    """Source: KIP-482."""
    schema: Any = load_request_schema(api_key, version)
    body = encode(schema, build(schema))
    assert body.endswith(b"\0")
    with WireClient(node.port) as client:
        for tags, its_body in (
            (b"\0", body),
            (UNKNOWN_TAG, body),
            (b"\0", body[:-1] + UNKNOWN_TAG),
            (UNKNOWN_TAG, body[:-1] + UNKNOWN_TAG),
        ):
            client.send(frame(api_key, version, 5, its_body, tags=tags))
            assert struct.unpack_from(">i", client.receive()) == (5,)


def test_a_header_of_nothing_but_tagged_fields_is_refused(node: NodeProcess) -> None:
    schema: Any = load_request_schema(API_VERSIONS, 3)
    body = encode(schema, build(schema, client_software_name="a", client_software_version="1"))
    for count, is_answered in ((TAGGED_FIELDS_MAX, True), (TAGGED_FIELDS_MAX + 1, False)):
        with WireClient(node.port) as client:
            tags = varint(count) + b"\x63\x00" * count
            client.send(frame(API_VERSIONS, 3, 5, body, tags=tags))
            assert client.is_closed_by_node() != is_answered


def test_unknown_tagged_fields_of_nested_structs_are_skipped(node: NodeProcess) -> None:
    topic = build(metadata.MetadataRequestTopic, name="nowhere")
    request = build(metadata.MetadataRequest, topics=(topic,), allow_auto_topic_creation=False)
    body = encode(metadata.MetadataRequest, request)
    head, tail = body.split(b"nowhere\0")
    with WireClient(node.port) as client:
        client.send(frame(3, 9, 1, body, tags=b"\0"))
        plain = client.receive()
        client.send(frame(3, 9, 1, head + b"nowhere" + UNKNOWN_TAG + tail, tags=b"\0"))
        assert client.receive() == plain


def test_requests_of_every_kind_are_answered_or_their_connections_closed(
    node: NodeProcess, request: pytest.FixtureRequest
) -> None:
    """Valid ones that make no sense, null wherever that is allowed, and broken ones."""
    assault(node, seeds(request), rounds=1, sample=60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_requests_of_every_kind_are_answered_or_their_connections_closed(
    node: NodeProcess, request: pytest.FixtureRequest
) -> None:
    assault(node, seeds(request), rounds=100, sample=None)


def test_null_in_any_place_of_any_request_is_answered_or_refused(node: NodeProcess) -> None:
    """Also where the schema has no null; one value of a request at a time."""
    with WireClient(node.port) as client:
        versions = served_versions(client)
    newest = dict(sorted(versions))
    cases = [case for each in newest.items() for case in with_a_null(*each)]
    for start in range(0, len(cases), AT_ONCE):
        send_all(node, cases[start : start + AT_ONCE])
    assert_no_traceback(node)


def with_a_null(api_key: int, version: int) -> Iterator[Case]:
    """Return requests with each value null, in turn, that has a length or may be null."""
    schema = load_request_schema(api_key, version)
    for at in itertools.count():
        try:
            pieces = random_message(
                schema, Random(5), texts=("t",), numbers=(0,) * 400, nulls=0, null_at=at
            )
        except ValueError:
            return
        head = struct.pack(">hhih", api_key, version, 1, -1) + b"\0" * schema.__flexible__
        yield case_of(api_key, version, head + joined(pieces))


def seeds(request: pytest.FixtureRequest) -> Random:
    """Return random numbers that can be had again."""
    seed = Random().getrandbits(32)
    print(f"seed {seed} of {request.node.name}")
    return Random(seed)


def assault(node: NodeProcess, random: Random, *, rounds: int, sample: int | None) -> None:
    """Send requests of all APIs in all versions, while somebody uses the node as one should.

    With ``sample`` each round has so many of the versions.
    """
    before = node.rss_bytes()
    with WireClient(node.port) as friend:
        versions = served_versions(friend)
        for _ in range(rounds):
            some = random.sample(versions, sample or len(versions))
            for nulls in (0.0, 0.5, 1.0):
                send_all(node, [strange(*each, random, nulls=nulls) for each in some])
            send_all(node, [strange(*each, random, is_broken=True) for each in some])
            produced = friend.produce("friend", batch_of(b"value"))
            assert produced.error_code is ErrorCode.none
            offset = produced.base_offset
            assert friend.fetch("friend", offset).high_watermark == offset + 1
            assert_no_traceback(node)
    assert node.rss_bytes() - before < MEMORY_GROWTH_MAX


def served_versions(client: WireClient) -> list[tuple[int, int]]:
    """Return every API key with every version of it."""
    return [
        (api.api_key, version)
        for api in client.call(api_versions_request()).api_keys
        for version in range(api.min_version, api.max_version + 1)
        if api.api_key != PRODUCE or version >= 3  # those below are advertised, not served
    ]


def strange(
    api_key: int, version: int, random: Random, *, nulls: float = 0.2, is_broken: bool = False
) -> Case:
    """Return a request with a header that is as strange as the request."""
    schema = load_request_schema(api_key, version)
    numbers = FEW if api_key in MAKE_PARTITIONS else FEW + TIMES_MS
    pieces = random_message(
        schema, random, strangers=random, texts=TEXTS, numbers=numbers, nulls=nulls
    )
    body = broken(pieces, random) if is_broken else joined(pieces)
    client_id = random.choice(CLIENT_IDS)
    length = -1 if client_id is None else len(client_id)
    tags = random.choice((b"\0", UNKNOWN_TAG)) if schema.__flexible__ else b""
    head = struct.pack(">hhih", api_key, version, 1, length) + (client_id or b"") + tags
    return case_of(api_key, version, head + body)


def case_of(api_key: int, version: int, data: bytes) -> Case:
    """Return the request with its size before it."""
    return Case(api_key, version, struct.pack(">i", len(data)) + data)


def send_all(node: NodeProcess, cases: list[Case]) -> None:
    """Send each request on a connection of its own; wait for every answer that must come."""
    with selectors.DefaultSelector() as selector:
        try:
            for case in cases:
                client = socket.create_connection(("127.0.0.1", node.port), SECONDS_MAX)
                selector.register(client, selectors.EVENT_READ, case)
                client.sendall(case.data)
            deadline = time.monotonic() + SECONDS_MAX
            while waiting := must_be_answered(selector.get_map()):
                assert time.monotonic() < deadline, waiting
                for key, _ in selector.select(0.1):
                    selector.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.close()
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def must_be_answered(keys: Mapping[Any, selectors.SelectorKey]) -> list[Case]:
    """Return the requests that wait for an answer and may not."""
    return [key.data for key in keys.values() if key.data.api_key not in MAY_BE_SILENT]


def assert_no_traceback(node: NodeProcess) -> None:
    """Fail with the first traceback that the node has logged, if there is one."""
    _, found, rest = node.log.partition("Traceback")
    assert not found, rest[:3000]


# -- texts that are too long for an answer --


@pytest.mark.parametrize("version", [2, 5, 9])
@pytest.mark.parametrize("client_id", [b"x" * 32_767, b"\xff" * 32_767], ids=["long", "no UTF-8"])
def test_a_member_id_fits_its_answer_whatever_the_client_calls_itself(
    node: NodeProcess, version: int, client_id: bytes
) -> None:
    schema: Any = load_request_schema(JOIN_GROUP, version)
    (protocol,) = get_args(get_type_hints(schema)["protocols"])[:1]
    body = encode(
        schema,
        build(
            schema,
            group_id=f"{client_id[:1]!r}-{version}",
            session_timeout=milliseconds(10_000),
            protocol_type="consumer",
            protocols=(build(protocol, name="range", metadata=b""),),
        ),
    )
    head = struct.pack(">hhih", JOIN_GROUP, version, 7, len(client_id)) + client_id
    data = head + (b"\0" if schema.__flexible__ else b"") + body
    with WireClient(node.port) as client:
        client.send(struct.pack(">i", len(data)) + data)
        assert struct.unpack_from(">i", client.receive()) == (7,)
    assert_no_traceback(node)


@pytest.mark.parametrize("version", [2, 7])
def test_an_error_text_is_cut_to_what_an_answer_holds(node: NodeProcess, version: int) -> None:
    schema: Any = load_request_schema(CREATE_TOPICS, version)
    (topic,) = get_args(get_type_hints(schema)["topics"])[:1]
    (setting,) = get_args(get_type_hints(topic)["configs"])[:1]
    settings = (build(setting, name="x" * 32_767, value="1"),)
    made = build(topic, name="never", num_partitions=1, replication_factor=1, configs=settings)
    with WireClient(node.port) as client:
        answer = client.call(build(schema, topics=(made,), timeout=milliseconds(5000)))
    assert answer.topics[0].error_code is ErrorCode.invalid_config
    assert len(answer.topics[0].error_message) == ERROR_TEXT_LENGTH_MAX
