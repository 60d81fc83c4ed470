"""Every API, asked by a client with no ACL and with each single one: Kafka's answers and ours.

The client differs from the administrator by its address alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from tidelog_core.message_schemas import OWN_APIS
from tidelog_core.security.operations import OPERATIONS as NEEDED

from tests.kafka.compare import Pair, compared
from tests.kafka.test_acls import AUTHORIZER
from tests.support.acl_rules import (
    CLIENT,
    DELETE,
    DESCRIBE,
    NAMES,
    OPEN,
    OPERATIONS,
    READ,
    WITH_ACLS,
    WRITE,
    change,
    leave_to_admin,
    rule,
)
from tests.support.acls import ALL, GROUP, TOPIC, TRANSACTIONAL_ID, acl_filter, creation
from tests.support.batches import batch
from tests.support.client_quotas import component, op
from tests.support.kafka_messages import API_KEYS
from tests.support.node_process import NodeProcess
from tests.support.peer import NO_TOPIC, Peer
from tools import kafka_broker
from tools.places import ToolAbsent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give brokers on which the client's requests need ACLs."""
    root = tmp_path_factory.mktemp("authorization")
    with ExitStack() as stack:
        try:
            port = stack.enter_context(
                kafka_broker.serve(
                    root / "kafka",
                    OPEN | {"authorizer.class.name": AUTHORIZER},
                    features={"share.version": 1},
                )
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        node = stack.enter_context(NodeProcess(root / "tidelog", config=WITH_ACLS))
        peers = Pair(Peer("kafka", port), Peer("tidelog", node.port))
        for peer in (peers.kafka, peers.tidelog):
            prepare(peer)
        yield peers
        peers.close()


def prepare(peer: Peer) -> None:
    """Create what the requests name, then leave everything to the administrator's address."""
    # Kafka would delete the records, which are old, 30 s after its start.
    peer.create_topic("secret", retention_ms="-1")
    peer.produce("secret", batch(1))
    peer.await_coordinator("g")
    peer.await_coordinator("x", key_type=1)
    peer.until(
        lambda: peer.call("init_producer_id", 4, transactional_id="x", transaction_timeout=60_000),
        lambda answer: answer["error_code"] == "none",
    )
    commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    peer.call(
        "offset_commit",
        7,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "secret", "partitions": [{**commit, "committed_leader_epoch": -1}]}],
    )
    leave_to_admin(peer)


class Request(NamedTuple):
    """A request of the client."""

    api: str
    version: int
    fields: Mapping[str, Any]


SECRET = {"name": "secret", "partitions": [0]}
INDEX = {"partition_index": 0}
COMMIT = {
    **INDEX,
    "committed_offset": 1,
    "committed_leader_epoch": -1,
    "committed_metadata": "",
}
MEMBER = {"generation_id": 1, "member_id": "m", "group_instance_id": None}
OF_PRODUCER = {"transactional_id": "x", "producer_id": 9_000, "producer_epoch": 0}


def topics(**partition: object) -> list[dict[str, Any]]:
    return [
        {"name": name, "partitions": [{"partition_index": 0, **partition}]}
        for name in ("secret", "absent")
    ]


def requests(topic_id: object) -> dict[str, Request]:
    """Return requests of every API that needs a permission, by label."""
    found: dict[str, Request] = {}

    def add(label: str, api: str, version: int, **fields: object) -> None:
        found[label] = Request(api, version, fields)

    listed = [{**INDEX, "timestamp": -1, "current_leader_epoch": -1}]
    add(
        "offsets",
        "list_offsets",
        7,
        replica_id=-1,
        topics=[{"name": name, "partitions": listed} for name in ("secret", "absent")],
    )
    named = [{"name": name} for name in ("secret", "absent")]
    flags = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
    add("metadata", "metadata", 12, topics=named, **flags)
    add("all metadata", "metadata", 12, topics=None, **flags)
    add("metadata by id", "metadata", 12, topics=[{"name": None, "topic_id": topic_id}], **flags)
    add(
        "cluster's operations",
        "metadata",
        8,
        topics=named,
        include_cluster_authorized_operations=True,
        **flags,
    )
    add("no metadata", "metadata", 0, topics=[])
    add("partitions", "describe_topic_partitions", 0, topics=named, response_partition_limit=9)
    add("all partitions", "describe_topic_partitions", 0, topics=[], response_partition_limit=9)
    add(
        "commit",
        "offset_commit",
        9,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics(committed_offset=1, committed_leader_epoch=-1, committed_metadata=""),
    )
    asked = [{"name": name, "partition_indexes": [0]} for name in ("secret", "absent")]
    add("offsets of g", "offset_fetch", 7, group_id="g", topics=asked, require_stable=False)
    add("all of g", "offset_fetch", 7, group_id="g", topics=None, require_stable=False)
    groups = [
        {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": wanted}
        for wanted in (asked, None)
    ]
    add("offsets of groups", "offset_fetch", 9, groups=groups[:1], require_stable=False)
    add("all of groups", "offset_fetch", 9, groups=groups[1:], require_stable=False)
    for kind, key in ((0, "g"), (1, "x")):
        add(f"coordinator of {key}", "find_coordinator", 4, key_type=kind, coordinator_keys=[key])
        add(f"one coordinator of {key}", "find_coordinator", 3, key_type=kind, key=key)
    add(
        "join",
        "join_group",
        9,
        group_id="g",
        session_timeout=30_000,
        rebalance_timeout=30_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
        reason=None,
    )
    add("heartbeat", "heartbeat", 4, group_id="g", **MEMBER)
    add(
        "sync",
        "sync_group",
        5,
        group_id="g",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
        **MEMBER,
    )
    add("leave alone", "leave_group", 2, group_id="g", member_id="m")
    add(
        "leave",
        "leave_group",
        5,
        group_id="g",
        members=[{"member_id": "m", "group_instance_id": None, "reason": None}],
    )
    add("groups", "describe_groups", 5, groups=["g"], include_authorized_operations=True)
    add("list of groups", "list_groups", 4, states_filter=[])
    add("groups deleted", "delete_groups", 2, groups_names=["none"])
    add("offsets deleted", "offset_delete", 0, group_id="none", topics=topics())
    creatable = {
        "name": "new",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    add(
        "created",
        "create_topics",
        7,
        topics=[creatable],
        timeout=1_000,
        validate_only=True,
    )
    add("deleted", "delete_topics", 5, topic_names=["absent"], timeout=1_000)
    add(
        "deleted by id",
        "delete_topics",
        6,
        topics=[{"name": None, "topic_id": NO_TOPIC.__class__(int=77)}],
        timeout=1_000,
    )
    add("records deleted", "delete_records", 2, topics=topics(offset=0), timeout=1_000)
    add(
        "widened",
        "create_partitions",
        3,
        topics=[{"name": "secret", "count": 2, "assignments": None}],
        timeout=1_000,
        validate_only=True,
    )
    producer = {"producer_id": -1, "producer_epoch": -1, "transaction_timeout": 60_000}
    add("producer", "init_producer_id", 4, transactional_id=None, **producer)
    add("transactional producer", "init_producer_id", 4, transactional_id="x", **producer)
    epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    add(
        "epoch ends",
        "offset_for_leader_epoch",
        4,
        replica_id=-1,
        topics=[{"topic": name, "partitions": [epoch]} for name in ("secret", "absent")],
    )
    add(
        "partitions added",
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=9_000,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[SECRET],
    )
    marker = {"producer_id": 9_000, "producer_epoch": 0, "coordinator_epoch": 0}
    absent = [{"name": "absent", "partition_indexes": [0]}]
    add(
        "markers",
        "write_txn_markers",
        1,
        markers=[{**marker, "transaction_result": False, "topics": absent}],
    )
    add("offsets added", "add_offsets_to_txn", 3, group_id="g", **OF_PRODUCER)
    add("ended", "end_txn", 3, committed=True, **OF_PRODUCER)
    add(
        "offsets in a transaction",
        "txn_offset_commit",
        3,
        group_id="g",
        topics=[{"name": "secret", "partitions": [COMMIT]}],
        **MEMBER,
        **OF_PRODUCER,
    )
    add("acls", "describe_acls", 3, **acl_filter("nothing"))
    add("acls created", "create_acls", 3, creations=[creation(principal="alice")])
    add("acls deleted", "delete_acls", 3, filters=[acl_filter("nothing")])
    for kind, name in ((2, "secret"), (32, "g"), (4, "1")):
        resource = {"resource_type": kind, "resource_name": name}
        label = f"of {kind} {name}"
        described = {"include_synonyms": False, "include_documentation": False}
        add(
            f"configs {label}",
            "describe_configs",
            4,
            resources=[{**resource, "configuration_keys": []}],
            **described,
        )
        for api, version in (("alter_configs", 2), ("incremental_alter_configs", 1)):
            nothing = {**resource, "configs": []}
            add(f"{api} {label}", api, version, resources=[nothing], validate_only=True)
    add(
        "log dirs altered",
        "alter_replica_log_dirs",
        2,
        dirs=[{"path": "/nowhere", "topics": [SECRET]}],
    )
    add("log dirs", "describe_log_dirs", 4, topics=[{"topic": "absent", "partitions": [0]}])
    add(
        "elected",
        "elect_leaders",
        2,
        election_type=0,
        topic_partitions=[{"topic": "absent", "partitions": [0]}],
        timeout=1_000,
    )
    add("reassigned", "alter_partition_reassignments", 0, timeout=1_000, topics=[])
    add("reassignments", "list_partition_reassignments", 0, timeout=1_000, topics=None)
    add("scram users", "describe_user_scram_credentials", 0, users=[{"name": "nobody"}])
    deletion = {"name": "nobody", "mechanism": 1}
    add(
        "scram users altered",
        "alter_user_scram_credentials",
        0,
        deletions=[deletion],
        upsertions=[],
    )
    add("quotas", "describe_client_quotas", 1, components=[component("user", 0, "nobody")])
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "nobody"}],
        "ops": [op("consumer_byte_rate", 1.0)],
    }
    add("quotas altered", "alter_client_quotas", 1, entries=[entry], validate_only=True)
    add("cluster", "describe_cluster", 0, include_cluster_authorized_operations=True)
    add("producers", "describe_producers", 0, topics=[{"name": "secret", "partition_indexes": [0]}])
    add("transactions", "describe_transactions", 0, transactional_ids=["unknown"])
    add("list of transactions", "list_transactions", 0, state_filters=[], producer_id_filters=[])
    add(
        "new member",
        "consumer_group_heartbeat",
        0,
        group_id="n",
        member_id="m",
        member_epoch=5,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=-1,
        subscribed_topic_names=["secret"],
        server_assignor=None,
        topic_partitions=None,
    )
    add(
        "new groups",
        "consumer_group_describe",
        0,
        group_ids=["n"],
        include_authorized_operations=True,
    )
    add("resources", "list_config_resources", 0)
    add(
        "share member",
        "share_group_heartbeat",
        1,
        group_id="s",
        member_id="m",
        member_epoch=5,
        rack_id=None,
        subscribed_topic_names=["secret"],
    )
    share_groups = ["s"]
    add(
        "share groups",
        "share_group_describe",
        1,
        group_ids=share_groups,
        include_authorized_operations=True,
    )
    wanted = [{"topic_name": name, "partitions": [0]} for name in ("secret", "absent")]
    for label, asked_topics in (("share offsets", wanted), ("all share offsets", None)):
        add(
            label,
            "describe_share_group_offsets",
            0,
            groups=[{"group_id": "s", "topics": asked_topics}],
        )
    absent_start = [{"partition_index": 0, "start_offset": 0}]
    add(
        "share offsets altered",
        "alter_share_group_offsets",
        0,
        group_id="none",
        topics=[{"topic_name": "absent", "partitions": absent_start}],
    )
    add(
        "share offsets deleted",
        "delete_share_group_offsets",
        0,
        group_id="none",
        topics=[{"topic_name": "secret"}],
    )
    of_share = {"group_id": "s", "member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    acknowledged = [{**INDEX, "acknowledgement_batches": []}]
    in_secret = [{"topic_id": topic_id, "partitions": acknowledged}]
    add(
        "share fetch",
        "share_fetch",
        1,
        share_session_epoch=0,
        max_wait=1_000,  # Kafka's loads the partition first, and answers when that has failed.
        min_bytes=1,
        max_bytes=1_000,
        max_records=1,
        batch_size=1,
        topics=in_secret,
        forgotten_topics_data=[],
        **of_share,
    )
    add(
        "share acknowledge",
        "share_acknowledge",
        1,
        share_session_epoch=5,
        topics=in_secret,
        **of_share,
    )
    # Without a login nobody has tokens: test_delegation_tokens.py has them, with ACLs.
    add(
        "token",
        "create_delegation_token",
        3,
        owner_principal_type="User",
        owner_principal_name="alice",
        renewers=[],
        max_lifetime=-1,
    )
    add("tokens", "describe_delegation_token", 3, owners=None)
    add("quorum", "describe_quorum", 2, topics=[])
    add("features", "update_features", 1, timeout=1_000, feature_updates=[], validate_only=True)
    return found


# Fields that depend on the client's rights. Other tests compare the other fields.
SHOWN = frozenset(
    {
        *("name", "topic", "topic_name", "topic_id", "partition_index", "partition"),
        *("group_id", "transactional_id", "key", "resource_type", "resource_name", "user"),
        *("topic_authorized_operations", "cluster_authorized_operations"),
        *("authorized_operations", "committed_offset"),
    }
)


def rights(value: Any, name: str = "") -> Any:
    """Return the fields of an answer that depend on the client's rights."""
    if isinstance(value, dict):
        shown = {
            key: rights(inner, key)
            for key, inner in value.items()
            if (isinstance(inner, list | dict) and key != "aborted_transactions")
            or key in SHOWN
            or key.endswith("error_code")
        }
        if "records" in value:
            shown["has records"] = bool(value["records"])
        return shown
    if isinstance(value, list):
        kept = [rights(one) for one in value if isinstance(one, dict)]
        internal = [one for one in kept if str(one.get("name", "")).startswith("__")]
        if name == "configs":
            return bool(kept)
        return [one for one in kept if one not in internal]
    return value


def answers(peer: Peer) -> Iterator[tuple[str, Any]]:
    client = Peer(peer.name, peer.port, address=CLIENT)
    try:
        for label, one in requests(peer.topic_ids["secret"]).items():
            yield label, rights(client.call(one.api, one.version, **one.fields))
        client.topic_ids = peer.topic_ids
        for topic, version in (("secret", 12), ("absent", 12), ("secret", 13)):
            label = f"fetch {topic}, version {version}"
            yield label, rights(client.fetch(topic, 0, version=version))
        session = client.fetch("secret", 0, session_epoch=0)
        yield "fetch session", rights(session)
        records = batch(1)
        for topic, version in (("secret", 9), ("absent", 9), ("secret", 13)):
            label = f"produce {topic}, version {version}"
            yield label, rights(client.produce(topic, records, version=version))
        of_x = batch(1, producer_id=9_000, producer_epoch=0, base_sequence=0, is_transactional=True)
        for label, transactional_id in (("its", "x"), ("no", None), ("another", "other")):
            answer = client.produce("secret", of_x, transactional_id=transactional_id)
            yield f"transactional, {label} id", rights(answer)
        client.timeout = 0.5
        yield "acks 0", client.produce("secret", records, acks=0)
    finally:
        client.close()


def test_every_api_that_a_node_serves_is_asked(pair: Pair) -> None:
    """A new API without a request here would be compared with nothing."""
    answer = pair.tidelog.call("api_versions", 0)
    served = {one["api_key"] for one in answer["api_keys"]} - OWN_APIS.keys()
    asked = {API_KEYS[one.api] for one in requests(NO_TOPIC).values()}
    hot = {API_KEYS["produce"], API_KEYS["fetch"]}
    for_everyone = {api_key for api_key in served if not NEEDED[api_key].needs}
    assert asked | hot | for_everyone == served
    names = ("sasl_handshake", "sasl_authenticate", "api_versions")
    by_the_token = ("renew_delegation_token", "expire_delegation_token")
    assert {API_KEYS[name] for name in names + by_the_token} == for_everyone


@compared
def test_a_client_without_an_acl(peer: Peer) -> Iterator[tuple[str, Any]]:
    change(peer)
    yield from answers(peer)


def answers_by_one_acl(peer: Peer, *, step: int) -> Iterator[tuple[str, Any]]:
    every = [(kind, one) for kind, operations in OPERATIONS.items() for one in operations]
    for kind, operation in every[::step]:
        change(peer, rule(kind, operation))
        for label, answer in answers(peer):
            yield f"{operation} of {kind}, {label}", answer


@compared
def test_a_client_with_some_one_acl(peer: Peer) -> Iterator[tuple[str, Any]]:
    yield from answers_by_one_acl(peer, step=4)


@pytest.mark.slow  # a quarter of it is asked above
@compared
def test_a_client_with_one_acl(peer: Peer) -> Iterator[tuple[str, Any]]:
    yield from answers_by_one_acl(peer, step=1)


@pytest.mark.slow
@compared
def test_a_client_with_several_acls(peer: Peer) -> Iterator[tuple[str, Any]]:
    for number, rules in enumerate(
        (
            ((GROUP, READ), (TOPIC, READ)),
            ((GROUP, DESCRIBE), (TOPIC, DESCRIBE)),
            ((GROUP, DELETE), (TOPIC, READ)),
            ((TRANSACTIONAL_ID, WRITE), (TOPIC, WRITE)),
            ((TRANSACTIONAL_ID, WRITE), (GROUP, READ), (TOPIC, READ)),
            ((TRANSACTIONAL_ID, DESCRIBE), (TOPIC, DESCRIBE)),
            tuple((kind, ALL) for kind in NAMES),
        )
    ):
        change(peer, *(rule(kind, operation) for kind, operation in rules))
        for label, answer in answers(peer):
            yield f"{number}, {label}", answer


@compared
def test_a_pattern_matches_topics_that_the_member_may_describe(
    peer: Peer,
) -> Iterator[tuple[str, Any]]:
    """Kafka resolves patterns on another thread and answers with them in a later heartbeat."""
    for name in ("pattern-a", "pattern-b", "pattern-c"):
        peer.create_topic(name)
    described = {**rule(TOPIC, DESCRIBE), "resource_name": "pattern-a"}
    written = {**rule(TOPIC, WRITE), "resource_name": "pattern-b"}  # which allows to describe
    change(peer, rule(GROUP, READ), rule(GROUP, DESCRIBE), described, written)
    names = {str(peer.topic_ids[name]): name for name in ("pattern-a", "pattern-b", "pattern-c")}
    client = Peer(peer.name, peer.port, address=CLIENT)
    epoch = 0

    def beat(**fields: Any) -> list[str]:
        nonlocal epoch
        answer = client.call(
            "consumer_group_heartbeat",
            1,
            group_id="patterns",
            member_id="m",
            member_epoch=epoch,
            instance_id=None,
            **fields,
        )
        epoch = answer["member_epoch"]
        assigned = (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]
        return sorted(names[str(one["topic_id"])] for one in assigned)

    try:
        first = beat(
            rebalance_timeout=5000, topic_partitions=[], subscribed_topic_regex="pattern-.*"
        )
        owned = first or peer.until(beat, bool)
        assert owned == ["pattern-a", "pattern-b"], peer.name
        yield "assigned", owned
    finally:
        client.close()
