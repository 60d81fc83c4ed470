"""Every version of the transaction requests as bytes, on a real node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tidelog import Admin
from tidelog_core.model import TRANSACTION_STATE_TOPIC
from tidelog_core.software_version import feature_of, tidelog_version

from tests.node.handlers.control_plane import make
from tests.support.batches import batch_of
from tests.support.node_peers import connected_as, register_peer
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, milliseconds

FIND, INIT, ADD, ADD_OFFSETS, END, MARKERS, COMMIT = 10, 22, 24, 25, 26, 27, 28
PRODUCERS, DESCRIBE, LIST, VERSIONS, METADATA, PRODUCE = 61, 65, 66, 18, 3, 0
NONE = ErrorCode.none
WAIT_SECONDS = 10.0


class Asked:
    """One connection, requests from plain values."""

    def __init__(self, client: WireClient) -> None:
        self._client = client

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        schema: Any = load_request_schema(api_key, version)
        known = schema.__dataclass_fields__
        given = {name: value for name, value in fields.items() if name in known}
        return self._client.call(make(schema, given))

    def producer(self, name: str, version: int = 6) -> tuple[int, int]:
        """Return the id and epoch of a new producer of the transactional id."""
        self.ask(FIND, 3, key=name, key_type=1)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self.ask(
                INIT, version, transactional_id=name, transaction_timeout=milliseconds(60_000)
            )
            if answer.error_code is NONE:
                return answer.producer_id, answer.producer_epoch
            assert answer.error_code.retriable, answer
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def add(self, name: str, who: tuple[int, int], version: int = 3, topic: str = "t") -> Any:
        answer = self.ask(
            ADD,
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=[{"name": topic, "partitions": [0]}],
        )
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def end(
        self, name: str, who: tuple[int, int], version: int = 4, *, commits: bool = True
    ) -> Any:
        return self.ask(
            END,
            version,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            committed=commits,
        )

    def produce(
        self, name: str, who: tuple[int, int], sequence: int, version: int = 9
    ) -> ErrorCode:
        records = batch_of(b"value", producer=(*who, sequence), is_transactional=True)
        answer = self.ask(
            PRODUCE,
            version,
            transactional_id=name,
            acks=-1,
            timeout=milliseconds(5000),
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
        )
        code: ErrorCode = answer.responses[0].partition_responses[0].error_code
        return code

    def produce_together(
        self, name: str, who: tuple[int, int], topic: str, *requests: dict[int, int]
    ) -> list[list[ErrorCode]]:
        """Send requests in one go; each says its partitions, and their batches' sequences."""
        schema: Any = load_request_schema(PRODUCE, 12)

        def records(sequence: int) -> bytes:
            return batch_of(b"value", producer=(*who, sequence), is_transactional=True)

        answers = self._client.call_together(
            make(
                schema,
                {
                    "transactional_id": name,
                    "acks": -1,
                    "timeout": milliseconds(5000),
                    "topic_data": [
                        {
                            "name": topic,
                            "partition_data": [
                                {"index": partition, "records": records(sequence)}
                                for partition, sequence in sequences.items()
                            ],
                        }
                    ],
                },
            )
            for sequences in requests
        )
        return [
            [each.error_code for each in answer.responses[0].partition_responses]
            for answer in answers
        ]

    def state(self, name: str) -> str:
        answer = self.ask(DESCRIBE, 0, transactional_ids=[name])
        state: str = answer.transaction_states[0].transaction_state
        return state

    def settle(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.state(name).startswith("Prepare"):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    with NodeProcess(tmp_path_factory.mktemp("wire") / "node", config=config) as process:
        yield process


@pytest.fixture
def asked(node: NodeProcess) -> Iterator[Asked]:
    with asking(node) as asked:
        yield asked


@contextmanager
def asking(node: NodeProcess) -> Iterator[Asked]:
    """Connect to a node, which has the topic ``t`` then."""
    with WireClient(node.port) as client:
        asked = Asked(client)
        asked.ask(METADATA, 12, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            topic = asked.ask(METADATA, 12, topics=[{"name": "t"}]).topics[0]
            if topic.error_code is NONE and topic.partitions[0].leader_id == 1:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield asked


@pytest.mark.parametrize("version", range(7))
def test_ids_are_given_in_every_version(asked: Asked, version: int) -> None:
    first = asked.producer(f"init-{version}", version)
    second = asked.producer(f"init-{version}", version)
    assert second == (first[0], first[1] + 1)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(asked: Asked, version: int) -> None:
    name = f"add-{version}"
    old = asked.producer(name)
    who = asked.producer(name)
    assert asked.add(name, who, version) is NONE
    assert asked.state(name) == "Ongoing"
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert asked.add(name, old, version) is fenced
    missing = asked.add(name, who, version, topic="none")
    assert missing is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", [4, 5])
def test_other_brokers_add_and_verify_in_every_version(version: int, tmp_path: Path) -> None:
    name, database = f"broker-{version}", tmp_path / "node" / "metadata.db"
    with NodeProcess(tmp_path / "node") as node, asking(node) as asked:
        who = asked.producer(name)
        with connected_as(register_peer(database, 2), database, 1) as client:
            check_adding(Asked(client), name, who, version)


def check_adding(asked: Asked, name: str, who: tuple[int, int], version: int) -> None:
    """Add a partition to the producer's transaction as a broker does."""

    def ask(*, verifies: bool) -> ErrorCode:
        transaction = {
            "transactional_id": name,
            "producer_id": who[0],
            "producer_epoch": who[1],
            "verify_only": verifies,
            "topics": [{"name": "t", "partitions": [0]}],
        }
        answer = asked.ask(ADD, version, transactions=[transaction])
        topic = answer.results_by_transaction[0].topic_results[0]
        code: ErrorCode = topic.results_by_partition[0].partition_error_code
        return code

    assert ask(verifies=True) is ErrorCode.transaction_abortable
    assert ask(verifies=False) is NONE
    assert ask(verifies=True) is NONE


@pytest.mark.parametrize("version", range(6))
def test_transactions_end_in_every_version(asked: Asked, version: int) -> None:
    name = f"end-{version}"
    old = asked.producer(name)
    who = asked.producer(name)
    asked.add(name, who)
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert asked.end(name, old, version).error_code is fenced
    answer = asked.end(name, who, version)
    assert answer.error_code is NONE
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (who[0], who[1] + 1)
    asked.settle(name)
    assert asked.state(name) == "CompleteCommit"


@pytest.mark.parametrize("version", range(5))
def test_offsets_join_a_transaction_in_every_version(asked: Asked, version: int) -> None:
    name = f"offsets-{version}"
    who = asked.producer(name)
    given = {"transactional_id": name, "producer_id": who[0], "group_id": f"g-{version}"}
    assert asked.ask(ADD_OFFSETS, version, **given, producer_epoch=who[1]).error_code is NONE
    wrong = asked.ask(ADD_OFFSETS, version, **given, producer_epoch=who[1] + 1).error_code
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert wrong is fenced


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_committed_with_a_transaction_in_every_version(
    asked: Asked, version: int
) -> None:
    name, group = f"commit-{version}", f"group-{version}"
    who = asked.producer(name)
    asked.ask(FIND, 3, key=group, key_type=0)
    if version < 5:
        given = {"transactional_id": name, "producer_id": who[0], "group_id": group}
        asked.ask(ADD_OFFSETS, 3, **given, producer_epoch=who[1])
    answer = asked.ask(
        COMMIT,
        version,
        transactional_id=name,
        group_id=group,
        producer_id=who[0],
        producer_epoch=who[1],
        generation_id=-1,
        topics=[
            {
                "name": "t",
                "partitions": [
                    {"partition_index": index, "committed_offset": 7} for index in (0, 9)
                ],
            }
        ],
    )
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [NONE, ErrorCode.unknown_topic_or_partition]

    def fetched(*, stable: bool) -> tuple[int, ErrorCode]:
        groups = [{"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}]
        found = asked.ask(9, 8, groups=groups, require_stable=stable)
        partition = found.groups[0].topics[0].partitions[0]
        return partition.committed_offset, partition.error_code

    assert fetched(stable=True) == (-1, ErrorCode.unstable_offset_commit)
    assert fetched(stable=False) == (-1, NONE)
    assert asked.end(name, who, 5 if version == 5 else 4).error_code is NONE
    asked.settle(name)
    assert fetched(stable=True) == (7, NONE)


def test_late_records_open_no_transaction(asked: Asked) -> None:
    name = "late"
    who = asked.producer(name)
    assert asked.produce(name, who, 0) is ErrorCode.invalid_txn_state
    assert asked.produce(name, who, 0, version=11) is ErrorCode.transaction_abortable
    asked.add(name, who)
    assert asked.produce(name, who, 0) is NONE
    asked.end(name, who)
    asked.settle(name)
    assert asked.produce(name, who, 1) is ErrorCode.invalid_txn_state
    assert asked.produce("never-heard-of", who, 1) is ErrorCode.invalid_producer_id_mapping
    # A newer producer's records open it by themselves.
    assert asked.produce(name, who, 1, version=12) is NONE
    assert asked.state(name) == "Ongoing"


def test_administrators_see_and_end_what_hangs(asked: Asked) -> None:
    name = "hangs"
    who = asked.producer(name)
    asked.produce(name, who, 0, version=12)

    def open_since() -> int:
        topics = [{"name": "t", "partition_indexes": [0]}]
        partition = asked.ask(PRODUCERS, 0, topics=topics).topics[0].partitions[0]
        assert partition.error_code is NONE
        found = {p.producer_id: p.current_txn_start_offset for p in partition.active_producers}
        start: int = found[who[0]]
        return start

    assert open_since() >= 0
    listed = asked.ask(LIST, 1, producer_id_filters=[who[0]], duration_filter=-1)
    assert [each.transactional_id for each in listed.transaction_states] == [name]
    marker = {
        "producer_id": who[0],
        "producer_epoch": who[1],
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    answer = asked.ask(MARKERS, 1, markers=[marker])
    assert answer.markers[0].topics[0].partitions[0].error_code is NONE
    assert open_since() == -1


@pytest.mark.parametrize("version", range(2))
def test_transactions_are_listed_in_every_version(asked: Asked, version: int) -> None:
    name = f"listed-{version}"
    asked.producer(name)
    answer = asked.ask(LIST, version, state_filters=["Empty", "Nonsense"], duration_filter=-1)
    assert answer.error_code is NONE
    assert list(answer.unknown_state_filters) == ["Nonsense"]
    found = {each.transactional_id: each.transaction_state for each in answer.transaction_states}
    assert found[name] == "Empty"


@pytest.mark.parametrize("version", [3, 4])
def test_producers_are_told_that_their_epoch_grows(asked: Asked, version: int) -> None:
    answer = asked.ask(VERSIONS, version, client_software_name="test", client_software_version="1")
    supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
    assert supported.pop(feature_of(tidelog_version())) == (1, 1)
    assert supported == {"transaction.version": (0 if version >= 4 else 1, 2)}
    finalized = {f.name: f.max_version_level for f in answer.finalized_features}
    assert finalized == {"transaction.version": 2}
    assert answer.finalized_features_epoch >= 0


def test_the_topic_of_the_shards_is_not_for_clients(asked: Asked) -> None:
    asked.producer("shards")
    who = asked.producer("shards")
    assert asked.add("shards", who, topic=TRANSACTION_STATE_TOPIC) is NONE
    # It has no records, so there is nothing to end: that must not take for ever.
    assert asked.end("shards", who).error_code is NONE
    asked.settle("shards")


def test_requests_that_come_together_are_appended_in_their_order(
    node: NodeProcess, asked: Asked
) -> None:
    """The first waits for the coordinator, because of another partition; the second need not."""
    with Admin(node.address).sync() as admin:
        admin.create_topic("pair", partition_count=2)
    who = asked.producer("together")
    assert asked.produce_together("together", who, "pair", {0: 0}) == [[NONE]]
    answers = asked.produce_together("together", who, "pair", {0: 1, 1: 0}, {0: 2})
    assert answers == [[NONE, NONE], [NONE]]
