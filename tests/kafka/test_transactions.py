"""Transactions: who may do what, and when; what readers see of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.kafka.batches import good_batch
from tests.kafka.compare import Pair, compared
from tests.support.node_peers import connected_as, register_peer
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
TIMEOUT_MS = 60_000
RETRIED = frozenset(
    {
        "concurrent_transactions",
        "coordinator_load_in_progress",
        "coordinator_not_available",
        "not_coordinator",
    }
)


def init(peer: Peer, name: str, *, version: int = 4, **fields: Any) -> Any:
    """Return InitProducerId's answer, once the transaction before has been ended."""
    peer.await_coordinator(name, key_type=1)
    given = {"transactional_id": name, "transaction_timeout": TIMEOUT_MS, **fields}
    return peer.until(
        lambda: peer.call("init_producer_id", version, **given),
        lambda answer: answer["error_code"] not in RETRIED,
    )


def producer(peer: Peer, name: str, **fields: Any) -> tuple[int, int]:
    """Return the id and epoch of a new producer."""
    answer = init(peer, name, **fields)
    assert answer["error_code"] == "none", answer
    return answer["producer_id"], answer["producer_epoch"]


def add(
    peer: Peer,
    name: str,
    who: tuple[int, int],
    *partitions: tuple[str, int],
    version: int = 3,
    waits: bool = True,
) -> Any:
    """Add partitions as a client does."""

    def ask() -> Any:
        return peer.call(
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=[
                {"name": topic, "partitions": [p for t, p in partitions if t == topic]}
                for topic in dict.fromkeys(topic for topic, _ in partitions)
            ],
        )

    if not waits:
        return ask()
    return peer.until(ask, lambda answer: not RETRIED & set(codes(answer)))


def codes(answer: Any) -> list[str]:
    """Return every partition's code in an answer of AddPartitionsToTxn."""
    return [
        p["partition_error_code"]
        for t in answer["results_by_topic_v3_and_below"]
        for p in t["results_by_partition"]
    ]


def end(
    peer: Peer, name: str, who: tuple[int, int], *, commits: bool = True, version: int = 4
) -> Any:
    """End the transaction; wait while the one before is being ended."""
    return peer.until(
        lambda: peer.call(
            "end_txn",
            version,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            committed=commits,
        ),
        lambda answer: answer["error_code"] not in RETRIED,
    )


def write(
    peer: Peer,
    name: str,
    who: tuple[int, int],
    topic: str,
    sequence: int,
    *,
    version: int = 9,
    partition: int = 0,
) -> Any:
    """Produce one record in a transaction; wait while the one before is being ended."""
    records = good_batch(producer=(*who, sequence), is_transactional=True)
    return peer.until(
        lambda: peer.produce(
            topic, records, version=version, partition=partition, transactional_id=name
        ),
        lambda answer: answer["error_code"] not in RETRIED | {"not_enough_replicas"},
    )


def settled(peer: Peer, name: str) -> Any:
    """Return the transaction's description, once it is not being ended."""
    return peer.until(
        lambda: described(peer, name), lambda it: not it["transaction_state"].startswith("Prepare")
    )


def described(peer: Peer, name: str) -> Any:
    """Return the transaction's description, without what clocks say."""
    answer = peer.call("describe_transactions", 0, transactional_ids=[name])
    state = answer["transaction_states"][0]
    for topic in state["topics"]:
        topic["partitions"].sort()
    return {**state, "transaction_start_time": state["transaction_start_time"] > 0}


def read(peer: Peer, topic: str, *, level: int = 1) -> Any:
    """Return how far a reader of this level gets, and what it is told was aborted."""
    found = peer.fetch(topic, 0, version=12, isolation_level=level)
    partition = found["responses"][0]["partitions"][0]
    aborted = partition["aborted_transactions"]
    return {
        "high_watermark": partition["high_watermark"],
        "last_stable_offset": partition["last_stable_offset"],
        "aborted": aborted and [one["first_offset"] for one in aborted],
        "has_records": bool(partition["records"]),
    }


@compared
def test_ids_of_transactional_producers(peer: Peer) -> Observations:
    for version in range(6):
        yield f"first {version}", init(peer, f"ids-{version}", version=version)
        yield f"second {version}", init(peer, f"ids-{version}", version=version)
    who = producer(peer, "ids-again")
    cases = {
        "own epoch": who,
        "own epoch again": who,
        "epoch too new": (who[0], 30),
        "epoch too old": (who[0], who[1] - 1),
        "other id": (who[0] + 500, 0),
        "id without epoch": (who[0], -1),
        "epoch without id": (-1, 0),
    }
    for label, (producer_id, epoch) in cases.items():
        for version in (3, 4):
            yield (
                f"{label} {version}",
                init(
                    peer,
                    "ids-again",
                    version=version,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                ),
            )
    for timeout in (0, -1, 900_000, 900_001):
        yield f"timeout {timeout}", init(peer, "ids-times", transaction_timeout=timeout)


@compared
def test_a_transaction_from_beginning_to_end(peer: Peer) -> Observations:
    peer.create_topic("txn-a", partitions=2)
    name = "beginning-to-end"
    for commits in (True, False):
        who = producer(peer, name)
        yield f"added {commits}", add(peer, name, who, ("txn-a", 0), ("txn-a", 1))
        yield f"added again {commits}", add(peer, name, who, ("txn-a", 0))
        yield f"open {commits}", described(peer, name)
        yield f"written {commits}", write(peer, name, who, "txn-a", 0)
        yield f"written more {commits}", write(peer, name, who, "txn-a", 1)
        yield f"read open {commits}", read(peer, "txn-a")
        yield f"read uncommitted {commits}", read(peer, "txn-a", level=0)
        yield f"ended {commits}", end(peer, name, who, commits=commits)
        yield f"complete {commits}", settled(peer, name)
        yield f"read {commits}", read(peer, "txn-a")
        yield f"ended again {commits}", end(peer, name, who, commits=commits)
        yield f"ended otherwise {commits}", end(peer, name, who, commits=not commits)


@compared
def test_what_the_wrong_producer_may_not_do(peer: Peer) -> Observations:
    peer.create_topic("txn-b")
    name = "wrong-producer"
    old = producer(peer, name)
    who = producer(peer, name)
    cases = {"old epoch": old, "new epoch": (who[0], who[1] + 1), "other id": (who[0] + 900, 0)}
    for label, wrong in cases.items():
        for version in (1, 3):
            yield f"{label} adds {version}", add(peer, name, wrong, ("txn-b", 0), version=version)
        for version in (1, 4, 5):
            yield f"{label} ends {version}", end(peer, name, wrong, version=version)
    for commits in (True, False):
        yield f"ends nothing {commits}", end(peer, name, who, commits=commits)
    yield "adds", add(peer, name, who, ("txn-b", 0))
    for label, wrong in cases.items():
        yield f"{label} writes", write(peer, name, wrong, "txn-b", 0)
        yield f"{label} writes and adds", write(peer, name, wrong, "txn-b", 0, version=12)
    for label in ("", "never-heard-of"):
        peer.await_coordinator(label, key_type=1)
        yield f"{label!r} adds", add(peer, label, who, ("txn-b", 0))
        yield f"{label!r} ends", end(peer, label, who)
        yield f"{label!r} ends 5", end(peer, label, who, version=5)
    yield "missing partition", add(peer, name, who, ("txn-b", 0), ("txn-b", 7), ("none", 0))


@compared
def test_records_outside_of_a_transaction_are_refused(peer: Peer) -> Observations:
    peer.create_topic("txn-c", partitions=2)
    name = "not-added"
    who = producer(peer, name)
    for version in (9, 10, 11):
        yield f"empty {version}", write(peer, name, who, "txn-c", 0, version=version)
    yield "adds", add(peer, name, who, ("txn-c", 0))
    for version in (9, 10, 11):
        yield (
            f"other partition {version}",
            write(peer, name, who, "txn-c", 0, version=version, partition=1),
        )
    yield "added partition", write(peer, name, who, "txn-c", 0)
    yield "ends", end(peer, name, who)
    yield "complete", settled(peer, name)
    for version in (9, 11):
        yield f"late {version}", write(peer, name, who, "txn-c", 1, version=version)
    yield "open after", read(peer, "txn-c")


@compared
def test_the_epoch_grows_with_every_transaction_of_newer_producers(peer: Peer) -> Observations:
    peer.create_topic("txn-d")
    name = "bumping"
    who = producer(peer, name, version=5)
    for index, commits in enumerate((True, False, True)):
        # Nobody adds the partition: the leader does.
        yield f"written {index}", write(peer, name, who, "txn-d", 0, version=12)
        yield f"open {index}", described(peer, name)
        answer = end(peer, name, who, commits=commits, version=5)
        yield f"ended {index}", answer
        yield f"complete {index}", settled(peer, name)
        yield f"retried {index}", end(peer, name, who, commits=commits, version=5)
        yield f"retried otherwise {index}", end(peer, name, who, commits=not commits, version=5)
        late = write(peer, name, who, "txn-d", 1, version=12)
        yield f"late {index}", late
        who = (answer["producer_id"], answer["producer_epoch"])
        yield f"nothing to commit {index}", end(peer, name, who, commits=True, version=5)
    answer = end(peer, name, who, commits=False, version=5)
    yield "aborted without partitions", answer
    yield "described", settled(peer, name)
    who = (answer["producer_id"], answer["producer_epoch"])
    yield "sequence after", write(peer, name, who, "txn-d", 3, version=12)
    yield "first sequence", write(peer, name, who, "txn-d", 0, version=12)
    yield "read", read(peer, "txn-d")


@compared
def test_a_new_producer_aborts_what_the_old_one_left(peer: Peer) -> Observations:
    peer.create_topic("txn-e")
    name = "left-open"
    for version in (9, 12):
        old = producer(peer, name)
        if version < 12:
            add(peer, name, old, ("txn-e", 0))
        yield f"written {version}", write(peer, name, old, "txn-e", 0, version=version)
        given = {"transactional_id": name, "transaction_timeout": TIMEOUT_MS}
        yield f"at first {version}", peer.call("init_producer_id", 4, **given)
        new = producer(peer, name)
        yield f"is newer {version}", (new[0] == old[0], new[1] > old[1])
        yield f"old writes {version}", write(peer, name, old, "txn-e", 1, version=version)
        yield f"old ends {version}", end(peer, name, old)
        yield f"old adds {version}", add(peer, name, old, ("txn-e", 0))
        yield f"read {version}", read(peer, "txn-e")


@compared
def test_offsets_in_transactions(peer: Peer) -> Observations:
    peer.create_topic("txn-f", partitions=2)
    name, group = "offsets", "txn-group"
    peer.await_coordinator(group)
    who = producer(peer, name)

    def commit(offset: int, version: int, by: tuple[int, int] = who, **fields: Any) -> Any:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
        given = {
            "transactional_id": name,
            "group_id": group,
            "producer_id": by[0],
            "producer_epoch": by[1],
            "topics": [{"name": "txn-f", "partitions": [part]}],
            **fields,
        }
        return peer.call("txn_offset_commit", version, **given)

    def fetched(*, stable: bool, version: int = 8) -> Any:
        wanted = {
            "group_id": group,
            "topics": [{"name": "txn-f", "partition_indexes": [0, 1]}],
        }
        answer = peer.call("offset_fetch", version, groups=[wanted], require_stable=stable)
        return answer["groups"]

    for version in (0, 2, 3, 4):
        yield f"not added {version}", commit(1, version)
    add_offsets = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1]}
    yield "added", peer.call("add_offsets_to_txn", 3, **add_offsets, group_id=group)
    yield (
        "added by another",
        peer.call("add_offsets_to_txn", 3, **{**add_offsets, "producer_epoch": 9}, group_id=group),
    )
    for version in range(5):
        yield f"committed {version}", commit(10 + version, version)
    yield "of a generation", commit(50, 3, generation_id=4, member_id="nobody")
    yield "by another", commit(50, 3, (who[0], who[1] + 1))
    yield (
        "unknown topic",
        commit(1, 3, topics=[{"name": "none", "partitions": [{"committed_offset": 1}]}]),
    )
    yield "described", described(peer, name)
    yield "pending", fetched(stable=False)
    yield "pending, stable", fetched(stable=True)
    yield "ended", end(peer, name, who)
    yield "complete", settled(peer, name)
    yield "afterwards", fetched(stable=True)
    who2 = producer(peer, name)
    yield "newer producers", commit(99, 5, who2)
    yield "described after", described(peer, name)
    yield "aborted", end(peer, name, who2, commits=False, version=5)
    settled(peer, name)
    yield "after the abort", fetched(stable=True)


@compared
def test_deleted_offsets_are_gone_from_transactions_too(peer: Peer) -> Observations:
    peer.create_topic("txn-deleted", partitions=2)
    name = group = "offsets-deleted"
    peer.await_coordinator(group)
    who = producer(peer, name)
    ids = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1]}

    def fetched() -> Any:
        wanted = {
            "group_id": group,
            "topics": [{"name": "txn-deleted", "partition_indexes": [0, 1]}],
        }
        return peer.call("offset_fetch", 8, groups=[wanted], require_stable=True)["groups"]

    peer.call("add_offsets_to_txn", 3, **ids, group_id=group)
    parts = [{"partition_index": index, "committed_offset": 5} for index in (0, 1)]
    topics = [{"name": "txn-deleted", "partitions": parts}]
    yield "committed", peer.call("txn_offset_commit", 3, **ids, group_id=group, topics=topics)
    deleted = [{"name": "txn-deleted", "partitions": [{"partition_index": 0}]}]
    yield "deleted", peer.call("offset_delete", 0, group_id=group, topics=deleted)
    yield "pending", fetched()
    yield "ended", end(peer, name, who)
    yield "settled", settled(peer, name)
    yield "in the end", fetched()


@compared
def test_a_deleted_group_loses_what_transactions_hold_for_it(peer: Peer) -> Observations:
    """And what the same transaction commits after that, the group gets."""
    peer.create_topic("txn-dropped")
    for goes_on in (False, True):
        name = group = f"deleted-{goes_on}"
        peer.await_coordinator(group)
        who = producer(peer, name)
        ids = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1]}
        peer.call("add_offsets_to_txn", 3, **ids, group_id=group)

        def commit(offset: int, ids: dict[str, Any] = ids, group: str = group) -> Any:
            part = {"partition_index": 0, "committed_offset": offset}
            topics = [{"name": "txn-dropped", "partitions": [part]}]
            return peer.call("txn_offset_commit", 3, **ids, group_id=group, topics=topics)

        def fetched(group: str = group) -> Any:
            wanted = {
                "group_id": group,
                "topics": [{"name": "txn-dropped", "partition_indexes": [0]}],
            }
            return peer.call("offset_fetch", 8, groups=[wanted], require_stable=True)["groups"]

        yield f"committed {goes_on}", commit(5)
        yield f"pending {goes_on}", fetched()
        yield f"deleted {goes_on}", peer.call("delete_groups", 2, groups_names=[group])
        yield f"after it {goes_on}", fetched()
        if goes_on:
            yield "committed again", commit(6)
            yield "pending again", fetched()
        yield f"ended {goes_on}", end(peer, name, who)
        yield f"settled {goes_on}", settled(peer, name)
        yield f"in the end {goes_on}", fetched()
        yield f"deleted again {goes_on}", peer.call("delete_groups", 2, groups_names=[group])


@compared
def test_transactions_that_take_too_long_are_aborted(peer: Peer) -> Observations:
    peer.create_topic("txn-g")
    for version in (9, 12):
        name = f"too-long-{version}"
        who = producer(peer, name, transaction_timeout=300)
        if version < 12:
            add(peer, name, who, ("txn-g", 0))
        yield f"written {version}", write(peer, name, who, "txn-g", 0, version=version)
        state = peer.until(
            lambda name=name: described(peer, name),  # type: ignore[misc]
            lambda it: it["transaction_state"] == "CompleteAbort",
        )
        yield f"state {version}", state["transaction_state"]
        yield f"read {version}", read(peer, "txn-g")
        yield f"written late {version}", write(peer, name, who, "txn-g", 1, version=version)
        yield f"is fenced {version}", state["producer_epoch"] > who[1]
        yield f"added late {version}", add(peer, name, who, ("txn-g", 0))
        yield f"committed late {version}", end(peer, name, who, version=5 if version == 12 else 4)
        again = init(peer, name)
        yield f"new {version}", again["error_code"]


@compared
def test_descriptions_of_producers_and_transactions(peer: Peer) -> Observations:
    peer.create_topic("txn-h", partitions=2)
    name = "described"
    who = producer(peer, name)

    def producers(**fields: Any) -> Any:
        topics = [
            {"name": "txn-h", "partition_indexes": [0, 1, 5]},
            {"name": "none", "partition_indexes": [0]},
            {"name": "a b", "partition_indexes": [0]},
        ]
        answer = peer.call("describe_producers", 0, topics=topics)
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                for one in partition["active_producers"]:
                    one["last_timestamp"] = one["last_timestamp"] > 0
        return answer

    yield "nobody", producers()
    add(peer, name, who, ("txn-h", 0))
    write(peer, name, who, "txn-h", 0)
    yield "open", producers()
    end(peer, name, who)
    settled(peer, name)
    yield "ended", producers()
    for other in ("", "none-of-these"):
        peer.await_coordinator(other, key_type=1)
        yield f"described {other!r}", described(peer, other)
    filters: dict[str, dict[str, Any]] = {
        "state": {"state_filters": ["CompleteCommit"], "producer_id_filters": [who[0]]},
        "another state": {"state_filters": ["Ongoing"], "producer_id_filters": [who[0]]},
        "unknown state": {"state_filters": ["Complete", "Dead"], "producer_id_filters": [who[0]]},
        "producer": {"producer_id_filters": [who[0], 1 << 40]},
        "young": {"producer_id_filters": [who[0]], "duration_filter": 1_000_000},
        "old": {"producer_id_filters": [who[0]], "duration_filter": 0},
    }
    for label, given in filters.items():
        version = 1 if "duration_filter" in given else 0
        yield f"listed by {label}", peer.call("list_transactions", version, **given)
    for other in ("pattern/ü", "pattern-1", "pattern-12"):
        producer(peer, other)
    patterns = (
        *(
            None,
            "",
            "pattern-1",
            "pattern",
            "pattern-1.*",
            "PATTERN.*",
            "(?i)PATTERN-.",
            ".attern/ü",
        ),
        *("pattern[^-]+", "pattern.[^0-9]", "(pattern-1", "pattern-*+", "[z-a]"),
    )
    for pattern in patterns:
        given = {"transactional_id_pattern": pattern, "state_filters": ["Empty", "Complete"]}
        answer = peer.call("list_transactions", 2, **given)
        states = [
            one for one in answer["transaction_states"] if "pattern" in one["transactional_id"]
        ]
        states.sort(key=lambda one: one["transactional_id"])
        yield f"listed by {pattern!r}", {**answer, "transaction_states": states}


@compared
def test_markers_that_an_administrator_writes(peer: Peer) -> Observations:
    peer.create_topic("txn-i")
    name = "hanging"
    who = producer(peer, name)
    add(peer, name, who, ("txn-i", 0))
    write(peer, name, who, "txn-i", 0)

    def marker(epoch: int, coordinator_epoch: int, topic: str = "txn-i") -> Any:
        one = {
            "producer_id": who[0],
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [0]}],
            "coordinator_epoch": coordinator_epoch,
        }
        return peer.call("write_txn_markers", 1, markers=[one])

    yield "none", peer.call("write_txn_markers", 1, markers=[])
    yield "old epoch", marker(who[1] - 1, 5)
    yield "unknown topic", marker(who[1], 5, "none")
    yield "open", read(peer, "txn-i")
    yield "aborted", marker(who[1], 5)
    yield "read", read(peer, "txn-i")
    yield "old coordinator", marker(who[1], 4)
    yield "again", marker(who[1], 5)


def test_partitions_that_other_brokers_add_and_verify(pair: Pair, tmp_path: Path) -> None:
    """Tidelog is asked by a node that is registered, in a cluster of its own."""
    with NodeProcess(tmp_path / "node") as node, ExitStack() as stack:
        database = node.data_dir / "metadata.db"

        def open_as_broker() -> socket.socket:
            client = connected_as(register_peer(database, 2), database, 1)
            return stack.enter_context(client).socket

        asked = Peer("tidelog", node.port, open_as_broker=open_as_broker)
        compared(partitions_that_other_brokers_add_and_verify)(Pair(pair.kafka, asked))
        asked.close()


def partitions_that_other_brokers_add_and_verify(peer: Peer) -> Observations:
    peer.create_topic("txn-j", partitions=2)
    name = "verified"
    who = producer(peer, name)
    peer.await_coordinator("unheard", key_type=1)
    broker = peer.as_broker()

    def ask(
        *, verifies: bool, by: tuple[int, int] = who, topic: str = "txn-j", id: str = name
    ) -> Any:
        one = {
            "transactional_id": id,
            "producer_id": by[0],
            "producer_epoch": by[1],
            "verify_only": verifies,
            "topics": [{"name": topic, "partitions": [0, 1]}],
        }
        return broker.call("add_partitions_to_txn", 4, transactions=[one])

    yield "nothing open", ask(verifies=True)
    yield "added", ask(verifies=False)
    yield "verified", ask(verifies=True)
    yield "old epoch", ask(verifies=True, by=(who[0], who[1] - 1))
    yield "new epoch", ask(verifies=True, by=(who[0], who[1] + 1))
    yield "other producer", ask(verifies=True, by=(who[0] + 700, 0))
    yield "unknown topic", ask(verifies=True, topic="none")
    yield "unknown id", ask(verifies=True, id="unheard")
