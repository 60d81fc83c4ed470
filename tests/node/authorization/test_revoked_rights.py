"""A client that loses its rights while its requests wait, or are kept, gets nothing more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.acl_rules import (
    CLIENT,
    DESCRIBE,
    READ,
    WITH_ACLS,
    WRITE,
    change,
    leave_to_admin,
    rule,
)
from tests.support.acls import GROUP, TOPIC
from tests.support.batches import batch
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

SECRET = "secret"
PARTITIONS = 40  # enough for a kept list
REFUSED = "topic_authorization_failed"
WAIT_MS = 20_000


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The administrator of a node that leaves nothing to others."""
    with NodeProcess(tmp_path_factory.mktemp("revoked") / "node", config=WITH_ACLS) as node:
        peer = Peer("tidelog", node.port)
        peer.create_topic(SECRET)
        peer.create_topic("wide", partitions=PARTITIONS)
        leave_to_admin(peer)
        yield peer
        peer.close()


@pytest.fixture
def client(admin: Peer) -> Iterator[Peer]:
    """A client that may read and write topics, as a member of any group."""
    change(admin, rule(TOPIC, READ), rule(TOPIC, WRITE), rule(GROUP, READ))
    peer = Peer("tidelog", admin.port, address=CLIENT)
    peer.topic_ids = admin.topic_ids
    yield peer
    peer.close()


def partition_of(answer: Any) -> Any:
    return answer["responses"][0]["partitions"][0]


@pytest.mark.parametrize("version", [12, 13])
def test_a_fetch_that_waits_gets_the_error_instead_of_the_records(
    version: int, admin: Peer, client: Peer
) -> None:
    end = admin.end_offset(SECRET)
    client.timeout = WAIT_MS / 1000
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            client.fetch(SECRET, end or 0, version=version, max_wait=WAIT_MS)
        )
    )
    waiting.start()
    time.sleep(0.3)  # It waits now, or finds the right gone as it arrives.
    change(admin, rule(TOPIC, WRITE))
    admin.produce(SECRET, batch(1))
    waiting.join()
    found = partition_of(answers[0])
    assert (found["error_code"], bool(found["records"])) == (REFUSED, False)


def test_a_fetch_session_is_checked_again_although_it_names_nothing(
    admin: Peer, client: Peer
) -> None:
    end = admin.end_offset(SECRET) or 0
    opened = client.fetch(SECRET, end, session_epoch=0, max_wait=0)
    session = {"session_id": opened["session_id"], "max_wait": 0}
    idle = follow(client, session_epoch=1, **session)
    assert (idle["error_code"], idle["responses"]) == ("none", [])
    change(admin, rule(TOPIC, WRITE))
    refused = follow(client, session_epoch=2, **session)
    assert partition_of(refused)["error_code"] == REFUSED
    change(admin, rule(TOPIC, READ))
    allowed = follow(client, session_epoch=3, **session)
    assert partition_of(allowed)["error_code"] == "none"


def follow(client: Peer, **fields: object) -> Any:
    given = {"min_bytes": 1, "max_bytes": 1_000_000, "replica_id": -1, **fields}
    return client.call("fetch", 12, topics=[], **given)


def test_a_repeated_list_is_checked_again(admin: Peer, client: Peer) -> None:
    def codes() -> set[str]:
        wanted = [
            {
                "partition": index,
                "fetch_offset": 0,
                "partition_max_bytes": 1_000,
                "log_start_offset": -1,
                "current_leader_epoch": -1,
            }
            for index in range(PARTITIONS)
        ]
        answer = client.call(
            "fetch",
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=1,
            max_bytes=1_000_000,
            session_epoch=-1,
            topics=[{"topic": "wide", "partitions": wanted}],
        )
        return {one["error_code"] for one in answer["responses"][0]["partitions"]}

    assert [codes() for _ in range(4)] == [{"none"}] * 4
    change(admin, rule(TOPIC, WRITE))
    assert codes() == {REFUSED}
    change(admin, rule(TOPIC, READ))
    assert codes() == {"none"}


def test_a_producer_is_refused_from_the_change_on(admin: Peer, client: Peer) -> None:
    assert client.produce(SECRET, batch(1))["error_code"] == "none"
    change(admin, rule(TOPIC, READ))
    before = admin.end_offset(SECRET)
    refused = client.produce(SECRET, batch(1))
    assert (refused["error_code"], refused["log_start_offset"]) == (REFUSED, -1)
    assert admin.end_offset(SECRET) == before
    change(admin, rule(TOPIC, WRITE))
    assert client.produce(SECRET, batch(1), version=13)["error_code"] == "none"


def test_a_topic_of_a_request_does_not_harm_another(admin: Peer, client: Peer) -> None:
    admin.call(
        "create_acls",
        3,
        creations=[{**rule(TOPIC, WRITE), "resource_name": "wide", "permission_type": 2}],
    )
    topics = [
        {"name": name, "partition_data": [{"index": 0, "records": bytes(batch(1))}]}
        for name in ("wide", SECRET)
    ]
    answer = client.call(
        "produce", 9, transactional_id=None, acks=-1, timeout=5_000, topic_data=topics
    )
    codes = {
        one["name"]: one["partition_responses"][0]["error_code"] for one in answer["responses"]
    }
    assert codes == {"wide": REFUSED, SECRET: "none"}


def test_a_share_member_gets_no_more_records(admin: Peer, client: Peer) -> None:
    member = {"group_id": "sharing", "member_id": "AAAAAAAAAAAAAAAAAAAAAA"}
    topic_id = admin.topic_ids[SECRET]
    asked = {
        "max_wait": 100,
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "max_records": 500,
        "batch_size": 500,
        "forgotten_topics_data": [],
    }
    named = [
        {
            "topic_id": topic_id,
            "partitions": [{"partition_index": 0, "acknowledgement_batches": []}],
        }
    ]

    def share_fetch(epoch: int, topics: list[Any]) -> Any:
        return client.call(
            "share_fetch", 1, share_session_epoch=epoch, topics=topics, **asked, **member
        )

    admin.await_coordinator("sharing")
    join = {"member_epoch": 0, "rack_id": None, "subscribed_topic_names": [SECRET], **member}
    joined = client.until(
        lambda: client.call("share_group_heartbeat", 1, **join),
        lambda answer: answer["error_code"] == "none",
    )
    assert joined["error_code"] == "none"
    opened = client.until(
        lambda: share_fetch(0, named),
        lambda answer: partition_of(answer)["error_code"] == "none",
    )
    assert partition_of(opened)["error_code"] == "none", opened
    change(admin, rule(GROUP, READ), rule(TOPIC, DESCRIBE))
    admin.produce(SECRET, batch(1))
    refused = partition_of(share_fetch(1, []))
    assert (refused["error_code"], bool(refused["records"])) == (REFUSED, False)
    change(admin, rule(TOPIC, READ))
    assert share_fetch(2, [])["error_code"] == "group_authorization_failed"


def test_a_member_with_a_pattern_loses_and_gets_topics_at_its_next_heartbeat(
    admin: Peer, client: Peer
) -> None:
    admin.await_coordinator("patterns")
    member = {"group_id": "patterns", "member_id": "m"}
    epoch = 0

    def beat(**fields: Any) -> set[str] | None:
        nonlocal epoch
        answer = client.call(
            "consumer_group_heartbeat",
            1,
            **{"rebalance_timeout": -1, "topic_partitions": None, **member, **fields},
            member_epoch=epoch,
        )
        assert answer["error_code"] == "none", answer
        epoch = answer["member_epoch"]
        names = {str(topic_id): name for name, topic_id in admin.topic_ids.items()}
        assignment = answer["assignment"]
        return assignment and {
            names[str(one["topic_id"])] for one in assignment["topic_partitions"]
        }

    pattern = {"subscribed_topic_regex": f"{SECRET}|wide"}
    joined = beat(rebalance_timeout=5_000, topic_partitions=[], **pattern)
    assert joined == {SECRET, "wide"}
    change(admin, {**rule(TOPIC, DESCRIBE), "resource_name": "wide"}, rule(GROUP, READ))
    assert beat() == {"wide"}
    wide = [{"topic_id": admin.topic_ids["wide"], "partitions": list(range(PARTITIONS))}]
    assert beat(topic_partitions=wide) in (None, {"wide"})  # It has given the other one up.
    assert beat() is None
    change(admin, rule(TOPIC, DESCRIBE), rule(GROUP, READ))
    assert beat() == {SECRET, "wide"}
