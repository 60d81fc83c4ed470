"""Topics by the hundred and the thousand, over the wire, and what others wait for it."""

from __future__ import annotations

import asyncio
import datetime
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore

from tests.node.answer_times import AnswerTimes
from tests.node.handlers.control_plane import make
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, encode, frame
from tools import dynamodb_local
from tools.places import ToolAbsent

CREATE_TOPICS, DELETE_TOPICS, METADATA = (19, 7), (20, 6), (3, 12)
WITHOUT_SETTINGS = 4  # the last version of CreateTopics whose answers this client reads fast
CREATE_CPU_SECONDS_MAX = 30.0  # of three nodes, who answer those that wait, too
ANSWER_SECONDS_MAX = 300.0  # of a machine that has other work, too


def names_of(count: int, prefix: str = "t") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def request(api: tuple[int, int], **fields: object) -> Any:
    return make(load_request_schema(*api), fields)


def create_request(
    names: Sequence[str],
    *,
    partitions: int = 1,
    factor: int = 1,
    version: int = CREATE_TOPICS[1],
    **more: object,
) -> Any:
    size = {"num_partitions": partitions, "replication_factor": factor}
    topics = [{"name": name, "assignments": [], "configs": [], **size} for name in names]
    timeout = datetime.timedelta(seconds=ANSWER_SECONDS_MAX)
    return request((CREATE_TOPICS[0], version), topics=topics, timeout=timeout, **more)


def codes(topics: Sequence[Any]) -> Counter[str]:
    return Counter(topic.error_code.name for topic in topics)


def create(client: WireClient, names: Sequence[str], **how: Any) -> Counter[str]:
    return codes(client.call(create_request(names, **how)).topics)


def delete(client: WireClient, names: Sequence[str]) -> Counter[str]:
    topics = [{"name": name, "topic_id": None} for name in names]
    timeout = datetime.timedelta(seconds=ANSWER_SECONDS_MAX)
    return codes(client.call(request(DELETE_TOPICS, topics=topics, timeout=timeout)).responses)


def metadata(client: WireClient, names: Sequence[str], *, creates: bool = False) -> Sequence[Any]:
    wanted = [{"name": name} for name in names]
    asked = request(METADATA, topics=wanted, allow_auto_topic_creation=creates)
    found: Sequence[Any] = client.call(asked).topics
    return found


@contextmanager
def nodes(
    folder: Path, count: int, metadata_store: str | None = None
) -> Iterator[list[NodeProcess]]:
    store = metadata_store or f"sqlite://{folder}/metadata.db"
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                NodeProcess(
                    folder / f"node{broker_id}",
                    broker_id=broker_id,
                    metadata_store=store,
                    config={"default.replication.factor": str(count)},
                )
            )
            for broker_id in range(1, count + 1)
        ]


@contextmanager
def client_of(node: NodeProcess) -> Iterator[WireClient]:
    with WireClient(node.port) as client:
        client.socket.settimeout(ANSWER_SECONDS_MAX)
        yield client


def test_topics_by_the_hundred_come_and_go_while_others_are_answered(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as (node,), client_of(node) as client, AnswerTimes(node.port) as others:
        names = names_of(200)
        assert create(client, ["t7"]) == {"none": 1}
        assert create(client, names, validate_only=True) == {
            "none": 199,
            "topic_already_exists": 1,
        }
        assert create(client, names) == {"none": 199, "topic_already_exists": 1}
        assert create(client, names, validate_only=True) == {"topic_already_exists": 200}
        more = names_of(100, "auto")
        assert codes(metadata(client, [*names, *more], creates=True)) == {"none": 300}
        assert create(client, ["wide"], partitions=10_001) == {"policy_violation": 1}
        assert delete(client, [*names, *more, "never"]) == {
            "none": 300,
            "unknown_topic_or_partition": 1,
        }
        assert codes(metadata(client, names)) == {"unknown_topic_or_partition": 200}
        assert len(others.seconds) > 20
    assert "ERROR" not in node.log
    print(f"the longest that another client waited: {others.longest_seconds * 1000:.0f} ms")


async def test_clients_that_want_a_topic_each_do_not_wait_for_one_another(tmp_path: Path) -> None:
    client_count = 250

    async def ask(port: int, name: str) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = request(METADATA, topics=[{"name": name}], allow_auto_topic_creation=True)
        began = time.monotonic()
        writer.write(frame(*METADATA, 1, encode(type(asked), asked), tags=b"\0"))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        writer.close()
        return time.monotonic() - began

    with nodes(tmp_path, 1) as (node,), client_of(node) as client:
        began = time.monotonic()
        seconds = await asyncio.gather(*(ask(node.port, name) for name in names_of(client_count)))
        lasted = time.monotonic() - began
        assert codes(metadata(client, names_of(client_count))) == {"none": client_count}
    print(f"{client_count} topics in {lasted:.2f} s, the longest wait {max(seconds):.2f} s")
    # One after the other they were a hundred a second, on a machine without other work.
    assert lasted < client_count / 100 * 4


def sqlite(folder: Path, _: ExitStack) -> str:
    return f"sqlite://{folder}/metadata.db"


def dynamodb(_: Path, stack: ExitStack) -> str:
    try:
        endpoint = stack.enter_context(dynamodb_local.serve())
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    table = f"tidelog-{uuid.uuid4().hex}"

    async def create_table() -> None:
        store = DynamoDbMetadataStore(
            table, region="us-east-1", endpoint=endpoint, read_timeout=20.0
        )
        await store.create_table()
        await store.close()

    asyncio.run(create_table())
    return f"dynamodb://{table}?region=us-east-1&endpoint={endpoint}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("open_store", [sqlite, dynamodb])
def test_thousands_of_topics_on_three_nodes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_store: Callable[[Path, ExitStack], str],
) -> None:
    """Prints its figures; what holds on a machine with other work is how much is computed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    with ExitStack() as stack:
        store = open_store(tmp_path, stack)
        members = stack.enter_context(nodes(tmp_path, 3, store))
        client = stack.enter_context(client_of(members[0]))

        def cpu_seconds() -> float:
            return sum(node.cpu_seconds() for node in members)

        def timed(label: str, work: Callable[[], Counter[str]]) -> float:
            with ExitStack() as watched:
                others = [watched.enter_context(AnswerTimes(node.port)) for node in members]
                began, cpu_before = time.monotonic(), cpu_seconds()
                assert work().keys() == {"none"}
                lasted, used = time.monotonic() - began, cpu_seconds() - cpu_before
            waits = ", ".join(
                f"p99 {times.percentile(99) * 1000:.0f} max {times.longest_seconds * 1000:.0f} ms"
                for times in others
            )
            effort = f"{lasted:.1f} s ({used:.1f} s of the nodes' processors)"
            print(f"{open_store.__name__}: {label} in {effort}; others waited {waits}")
            return used

        names = names_of(3000)
        used = timed("3,000 topics created", lambda: create(client, names, factor=3))
        assert used < CREATE_CPU_SECONDS_MAX
        unknown = names_of(2000, "auto")
        timed(
            "2,000 topics created by Metadata",
            lambda: codes(metadata(client, unknown, creates=True)),
        )
        timed(
            "a topic of 5,000 partitions created",
            lambda: create(client, ["wide"], partitions=5000, factor=3),
        )
        timed(
            "10,000 topics validated",
            lambda: create(
                client, names_of(10_000, "valid"), version=WITHOUT_SETTINGS, validate_only=True
            ),
        )
        timed("3,000 topics deleted", lambda: delete(client, names))
        assert not [line for node in members for line in node.log.splitlines() if "ERROR" in line]
