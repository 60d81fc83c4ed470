"""Creates and uses topics of any peer, by raw requests that all peers support."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kio.schema.create_topics.v5 import request as create_topics
from kio.schema.delete_topics.v4 import request as delete_topics
from kio.schema.metadata.v8 import request as metadata
from tidelog_core.wire_messages import build

from bench.peers.peer import Peer
from bench.process import Node
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, encode, frame, milliseconds, produce_body

_SECONDS_MAX = 150.0  # for one request: some peers are slow to create thousands of partitions
_RETRY_SECONDS = 0.005
_IN_FLIGHT = 50
PRODUCE = 0, 8  # key and version of the requests that ``produce_body`` writes
_numbers = itertools.count()


@contextmanager
def fresh_topic(node: Node, peer: Peer, partition_count: int = 1) -> Iterator[str]:
    """Create a topic that accepts records at once; delete it at the end."""
    name = f"bench-{next(_numbers)}"
    create_topic(node, peer, name, partition_count)
    try:
        await_partitions(node, name, partition_count)
        yield name
    finally:
        with suppress(OSError, EOFError):  # The error that ended the server was raised before.
            _delete(node, name)


def create_topic(node: Node, peer: Peer, name: str, partition_count: int) -> None:
    """Create a topic. Raises ``RuntimeError`` if the server refuses it."""
    configs = tuple(
        build(create_topics.CreatableTopicConfig, name=key, value=value)
        for key, value in peer.topic_config.items()
    )
    topic = build(
        create_topics.CreatableTopic,
        name=name,
        num_partitions=partition_count,
        replication_factor=1,
        configs=configs,
    )
    with _patient_client(node) as client:
        [answer] = client.call(
            build(
                create_topics.CreateTopicsRequest,
                topics=(topic,),
                timeout=milliseconds(int(_SECONDS_MAX * 1000)),
            )
        ).topics
    if answer.error_code:
        raise RuntimeError(f"creating a topic was answered with {answer.error_code!r}")


def await_partitions(node: Node, name: str, partition_count: int) -> None:
    """Return once every partition has a leader on the server that answers fetches."""
    deadline = time.perf_counter() + _SECONDS_MAX
    with _patient_client(node) as client:
        for partition in range(partition_count):
            while _refuses_fetches(client, name, partition):
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"partition {partition} cannot be fetched")
                time.sleep(_RETRY_SECONDS)


def produce_until_acknowledged(node: Node, topic: str, partition: int = 0) -> float:
    """Return the seconds from the process's start to the first acknowledged record."""
    deadline = time.perf_counter() + _SECONDS_MAX
    batch = batch_of(b"first")
    with _patient_client(node) as client:
        while client.produce(topic, batch, partition=partition).error_code:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"no record was taken within {_SECONDS_MAX:.0f} s")
            time.sleep(_RETRY_SECONDS)
    return time.perf_counter() - node.started_at


def produce_to_each(node: Node, topic: str, partition_count: int) -> None:
    """Produce a record to every partition. Raises ``RuntimeError`` if one is refused."""
    batch = batch_of(b"first")
    with _patient_client(node) as client:
        for start in range(0, partition_count, _IN_FLIGHT):
            some = range(start, min(start + _IN_FLIGHT, partition_count))
            bodies = [produce_body(topic, batch, partition=partition) for partition in some]
            client.send(b"".join(frame(*PRODUCE, 1, body, tags=b"") for body in bodies))
            for _ in some:
                check_produced(client.receive(), topic)


def check_produced(answer: bytes, topic: str) -> None:
    """Raise ``RuntimeError`` if a Produce answer for one partition has an error."""
    # correlation id, one topic: name; one partition: index, error code
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    if error:
        raise RuntimeError(f"a produce request was answered with error code {error}")


def ask_metadata(node: Node, names: Sequence[str], times: int) -> None:
    """Request the metadata of the topics in sequence; parse no answer."""
    schema = metadata.MetadataRequest
    wanted = tuple(build(metadata.MetadataRequestTopic, name=name) for name in names)
    body = encode(schema, build(schema, topics=wanted))
    data = frame(schema.__api_key__, schema.__version__, 1, body, tags=b"")
    with _patient_client(node) as client:
        for _ in range(times):
            client.send(data)
            client.receive()


def _refuses_fetches(client: WireClient, name: str, partition: int) -> bool:
    # Tansu omits partitions without records.
    answers = client.fetch_response(name, 0, partition=partition).responses
    return any(one.error_code for answer in answers for one in answer.partitions)


def _delete(node: Node, name: str) -> None:
    request = build(
        delete_topics.DeleteTopicsRequest,
        topic_names=(name,),
        timeout=milliseconds(int(_SECONDS_MAX * 1000)),
    )
    with _patient_client(node) as client:
        client.call(request)


def _patient_client(node: Node) -> WireClient:
    client = WireClient(node.port)
    client.socket.settimeout(_SECONDS_MAX)
    return client
