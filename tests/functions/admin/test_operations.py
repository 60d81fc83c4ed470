"""What operations do, on a real store without nodes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tidelog.consuming.group_protocol import encode_assignment
from tidelog_core.config import NodeConfig
from tidelog_core.errors import UnknownTopicOrPartition
from tidelog_core.metadata.coordination.consumer_groups import (
    HASH_OF_NO_TOPICS,
    ConsumerGroupState,
    ConsumerMember,
    TopicIdPartition,
)
from tidelog_core.metadata.coordination.groups import (
    GroupMember,
    group_collection,
    shard_of_group,
)
from tidelog_core.metadata.coordination.share_groups import ShareGroupState, ShareMember
from tidelog_core.metadata.coordination.share_partitions import (
    RecordState,
    SharePartitionRecord,
    StateBatch,
)
from tidelog_core.metadata.records import (
    Partition,
    SegmentMeta,
    SegmentState,
    put,
)
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, Write
from tidelog_core.model import TopicPartition

from tests.support.admin_calls import GROUP_SHARDS, Api, new_cluster, put_group, topic_id


@pytest.fixture
def groups(api: Api) -> Iterator[Api]:
    """With a topic of two partitions, and the one that carries the groups' shards."""
    api.done("POST", "/topics", {"name": "__consumer_offsets", "partition_count": GROUP_SHARDS})
    api.done("POST", "/topics", {"name": "t", "partition_count": 2})
    return api


def starts(api: Api, group_id: str) -> dict[int, int]:
    found = api.done("GET", "/group", group_id=group_id)["start_offsets"]
    return {at["partition"]: at["start_offset"] for at in found}


def partition_of(api: Api, topic: str, number: int = 0) -> Partition:
    image = api.runner.run(api.cluster.view.refresh())
    found = image.partition(TopicPartition(topic, number))
    assert found is not None
    return found


def a_segment(
    api: Api, base_offset: int, end_offset: int, state: SegmentState = SegmentState.COPY_FINISHED
) -> None:
    segment = SegmentMeta(
        topic_id=topic_id(api, "t"),
        partition=0,
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epoch=0,
        segment_id=UUID(int=base_offset + 1),
        state=state,
        size_bytes=100,
        index_size_bytes=10,
        max_timestamp_ms=base_offset,
        leader_epochs=((0, 0),),
        chained_hash="",
        created_ms=0,
    )
    api.commit(put(segment, is_logged=False))


class TestTopics:
    def test_one_is_created_described_widened_and_deleted(self, api: Api) -> None:
        created = api("POST", "/topics", {"name": "t", "partition_count": 2})
        assert created.status == 201
        assert created.body == {
            "name": "t",
            "topic_id": created.body["topic_id"],
            "partition_count": 2,
            "replication_factor": 1,
            "is_applied": True,
        }
        assert api.done("GET", "/topics/t")["topic_id"] == created.body["topic_id"]
        widened = api.done("POST", "/topics/t/partitions", {"partition_count": 3})
        assert widened["partition_count"] == 3
        partitions = api.done("GET", "/topics/t/partitions")["partitions"]
        assert [p["partition"] for p in partitions] == [0, 1, 2]
        assert api.done("DELETE", "/topics/t")["partition_count"] == 3
        for path in ("/topics/t", "/topics/t/partitions", "/topics/t/configs"):
            assert api("GET", path).problem == (404, "UNKNOWN_TOPIC_OR_PARTITION")
        assert api("DELETE", "/topics/t").problem == (404, "UNKNOWN_TOPIC_OR_PARTITION")

    def test_a_broker_that_has_left_gets_no_partitions(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "partition_count": 6, "replication_factor": 2})
        partitions = api.done("GET", "/topics/t/partitions")["partitions"]
        assert {b for p in partitions for b in p["replicas"]} == {1, 2}
        found = {b["broker_id"]: b for b in api.done("GET", "/brokers")["brokers"]}
        assert [found[b]["is_live"] for b in (1, 2, 3)] == [True, True, False]
        assert found[1]["leader_count"] == 3
        assert found[1]["replica_count"] == 6

    def test_replicas_can_be_given(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "assignments": [[2, 1], [1, 3]]})
        partitions = api.done("GET", "/topics/t/partitions")["partitions"]
        assert [(p["replicas"], p["isr"], p["leader"]) for p in partitions] == [
            ([2, 1], [2, 1], 2),
            ([1, 3], [1], 1),
        ]

    def test_validation_changes_nothing(self, api: Api) -> None:
        checked = api("POST", "/topics", {"name": "t", "validate_only": True})
        assert (checked.status, checked.body["topic_id"]) == (200, None)
        assert api.done("GET", "/topics")["topics"] == []
        api.done("POST", "/topics", {"name": "t"})
        more = {"partition_count": 5, "validate_only": True}
        assert api.done("POST", "/topics/t/partitions", more)["is_applied"] is False
        assert api.done("GET", "/topics/t")["partition_count"] == 1

    @pytest.mark.parametrize(
        ("body", "status", "error"),
        [
            ({"name": "there"}, 409, "TOPIC_ALREADY_EXISTS"),
            ({"name": "a b"}, 422, "INVALID_TOPIC_EXCEPTION"),
            ({"name": ""}, 422, "INVALID_TOPIC_EXCEPTION"),
            ({"name": "x" * 250}, 422, "INVALID_TOPIC_EXCEPTION"),
            ({"name": "__cluster_metadata"}, 422, "INVALID_REQUEST"),
            ({"name": "n", "partition_count": 0}, 422, "INVALID_PARTITIONS"),
            ({"name": "n", "partition_count": 10_001}, 422, "POLICY_VIOLATION"),
            ({"name": "n", "replication_factor": 4}, 422, "INVALID_REPLICATION_FACTOR"),
            ({"name": "n", "assignments": [[9]]}, 422, "INVALID_REPLICA_ASSIGNMENT"),
            ({"name": "n", "configs": {"colour": "red"}}, 422, "INVALID_CONFIG"),
            ({"name": "n", "configs": {"retention.ms": "soon"}}, 422, "INVALID_CONFIG"),
        ],
    )
    def test_what_cannot_be_created_has_kafkas_error(
        self, api: Api, body: object, status: int, error: str
    ) -> None:
        api.done("POST", "/topics", {"name": "there"})
        assert api("POST", "/topics", body).problem == (status, error)

    def test_fewer_partitions_are_refused(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "partition_count": 2})
        answer = api("POST", "/topics/t/partitions", {"partition_count": 1})
        assert answer.problem == (422, "INVALID_PARTITIONS")
        assert "currently has 2 partition(s)" in answer.body["detail"]

    def test_pages_hold_every_topic_once(self, api: Api) -> None:
        for name in ("d", "a", "c", "b", "__consumer_offsets"):
            api.done("POST", "/topics", {"name": name})
        first = api.done("GET", "/topics", limit=3)
        assert [t["name"] for t in first["topics"]] == ["a", "b", "c"]
        rest = api.done("GET", "/topics", limit=3, after=first["next_after"])
        assert [t["name"] for t in rest["topics"]] == ["d"]
        assert rest["next_after"] is None
        assert len(api.done("GET", "/topics", internal="true")["topics"]) == 5

    def test_the_nodes_settings_are_the_defaults_and_can_forbid_deletion(
        self, tmp_path: Path
    ) -> None:
        told = NodeConfig(num_partitions=4, default_replication_factor=2, delete_topic_enable=False)
        with new_cluster(tmp_path, node_config=told) as api:
            created = api.done("POST", "/topics", {"name": "t"})
            assert (created["partition_count"], created["replication_factor"]) == (4, 2)
            assert api("DELETE", "/topics/t").problem == (403, "TOPIC_DELETION_DISABLED")


class TestPartitions:
    def test_one_is_described_with_pages_of_its_tiered_segments(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t"})
        path = "/topics/t/partitions/0"
        empty = api.done("GET", path)
        assert empty["tiered"] == {"segment_count": 0, "size_bytes": 0, "end_offset": 0}
        for base in (0, 10, 20):
            a_segment(api, base, base + 10)
        a_segment(api, 30, 40, SegmentState.COPY_STARTED)
        first = api.done("GET", path, limit=3)
        assert first["tiered"] == {"segment_count": 3, "size_bytes": 300, "end_offset": 30}
        assert [s["base_offset"] for s in first["segments"]] == [0, 10, 20]
        rest = api.done("GET", path, limit=3, after=first["next_after"])
        assert [(s["base_offset"], s["state"]) for s in rest["segments"]] == [(30, "copy-started")]
        assert rest["next_after"] is None
        assert first["partition"]["leader"] in (1, 2)

    def test_one_that_is_not_there_is_named(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t"})
        answer = api("GET", "/topics/t/partitions/1")
        assert answer.problem == (404, "UNKNOWN_TOPIC_OR_PARTITION")
        assert "no partition 1" in answer.body["detail"]
        assert answer.body["hint"] == UnknownTopicOrPartition.hint


class TestConfigs:
    def test_a_topics_are_altered_one_by_one(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "configs": {"retention.ms": "1000"}})
        altered = api.done(
            "PATCH",
            "/topics/t/configs",
            {
                "alterations": [
                    {"name": "retention.ms", "operation": "delete"},
                    {"name": "segment.bytes", "operation": "set", "value": "5000"},
                    {"name": "cleanup.policy", "operation": "append", "value": "compact"},
                ]
            },
        )
        assert altered == {
            "configs": {"cleanup.policy": "delete,compact", "segment.bytes": "5000"},
            "is_applied": True,
        }
        found = {e["name"]: e for e in api.done("GET", "/topics/t/configs")["configs"]}
        assert found["segment.bytes"]["value"] == "5000"
        assert found["segment.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
        assert found["retention.ms"]["source"] == "DEFAULT_CONFIG"
        assert found["retention.ms"]["documentation"]

    def test_a_groups_are_altered_before_there_is_such_a_group(self, api: Api) -> None:
        def altered(name: str, operation: str, **more: object) -> object:
            one = {"name": name, "operation": operation, **more}
            return api.done("PATCH", path, {"alterations": [one]}, group_id="g/1")["configs"]

        path, name = "/group/configs", "share.auto.offset.reset"
        assert altered(name, "set", value="earliest") == {name: "earliest"}
        found = {e["name"]: e for e in api.done("GET", path, group_id="g/1")["configs"]}
        assert (found[name]["value"], found[name]["source"]) == ("earliest", "DYNAMIC_GROUP_CONFIG")
        session = found["consumer.session.timeout.ms"]
        assert (session["value"], session["source"]) == ("45000", "DEFAULT_CONFIG")
        assert altered(name, "delete") == {}
        others = api.done("GET", path, group_id="another")["configs"]
        assert {entry["source"] for entry in others} == {"DEFAULT_CONFIG"}

    def test_what_no_group_can_have_is_refused(self, api: Api) -> None:
        for group_id, name, error in (
            ("g", "retention.ms", "INVALID_CONFIG"),
            ("x" * 1001, "share.auto.offset.reset", "INVALID_GROUP_ID"),
        ):
            wanted = {"alterations": [{"name": name, "operation": "set", "value": "latest"}]}
            answer = api("PATCH", "/group/configs", wanted, group_id=group_id)
            assert answer.problem == (422, error)
        answer = api("GET", "/group/configs", group_id="x" * 1001)
        assert answer.problem == (422, "INVALID_GROUP_ID")

    def test_brokers_are_altered_together_and_one_by_one(self, api: Api) -> None:
        def wanted(value: str) -> dict[str, object]:
            change = {"name": "log.retention.ms", "operation": "set", "value": value}
            return {"alterations": [change]}

        assert api.done("PATCH", "/brokers/configs", wanted("7000"))["is_applied"]
        assert api.done("PATCH", "/brokers/2/configs", wanted("8000"))["is_applied"]
        (shown,) = api.done("GET", "/brokers/configs")["configs"]
        assert (shown["name"], shown["value"]) == ("log.retention.ms", "7000")

        def value_of(path: str, name: str) -> tuple[str, str]:
            found = {e["name"]: e for e in api.done("GET", path)["configs"]}
            return found[name]["value"], found[name]["source"]

        api.done("POST", "/topics", {"name": "t"})
        assert value_of("/brokers/1/configs", "log.retention.ms") == (
            "7000",
            "DYNAMIC_DEFAULT_BROKER_CONFIG",
        )
        assert value_of("/brokers/2/configs", "log.retention.ms")[0] == "8000"
        assert value_of("/topics/t/configs", "retention.ms")[0] == "7000"

    @pytest.mark.parametrize(
        ("path", "alteration", "status", "error"),
        [
            ("/topics/t/configs", {"name": "colour", "operation": "set", "value": "1"}, 422, "INVALID_CONFIG"),
            ("/topics/t/configs", {"name": "retention.ms", "operation": "set"}, 422, "INVALID_REQUEST"),
            ("/topics/t/configs", {"name": "retention.ms", "operation": "append", "value": "1"}, 422, "INVALID_CONFIG"),
            ("/topics/t/configs", {"name": "retention.ms", "operation": "grow", "value": "1"}, 400, "INVALID_REQUEST"),
            ("/topics/u/configs", {"name": "retention.ms", "operation": "delete"}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("/brokers/1/configs", {"name": "background.threads", "operation": "set", "value": "1"}, 422, "INVALID_REQUEST"),
            ("/brokers/9/configs", {"name": "log.retention.ms", "operation": "delete"}, 404, "BROKER_ID_NOT_REGISTERED"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_altered_has_kafkas_error(
        self, api: Api, path: str, alteration: object, status: int, error: str
    ) -> None:
        api.done("POST", "/topics", {"name": "t"})
        body = {"alterations": [alteration]}
        assert api("PATCH", path, body).problem == (status, error)

    def test_a_setting_named_twice_is_refused(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t"})
        one = {"name": "retention.ms", "operation": "set", "value": "1"}
        answer = api("PATCH", "/topics/t/configs", {"alterations": [one, one]})
        assert answer.problem == (422, "INVALID_REQUEST")
        assert "duplicate" in answer.body["detail"]


class TestGroups:
    def test_they_are_listed_in_pages_and_by_state(self, groups: Api) -> None:
        for group_id in ("c", "a", "ü/?&", "b"):
            put_group(groups, group_id)
        put_group(groups, "m", members=(a_member(),))
        first = groups.done("GET", "/groups", limit=3)
        assert [g["group_id"] for g in first["groups"]] == ["a", "b", "c"]
        rest = groups.done("GET", "/groups", limit=3, after=first["next_after"])
        assert [g["group_id"] for g in rest["groups"]] == ["m", "ü/?&"]
        assert rest["next_after"] is None
        stable = groups.done("GET", "/groups", state="Stable")["groups"]
        assert [(g["group_id"], g["member_count"]) for g in stable] == [("m", 1)]

    def test_one_is_described_with_members_and_offsets(self, groups: Api) -> None:
        put_group(groups, "ü/?&", members=(a_member(), a_member(b"no assignment of consumers")))
        found = groups.done("GET", "/group", group_id="ü/?&")
        assert (found["state"], found["generation"], found["protocol_name"]) == (
            "Stable",
            3,
            "range",
        )
        assert [m["assignment"] for m in found["members"]] == [
            [{"topic": "t", "partitions": [0, 1]}],
            None,
        ]
        assert found["offsets"] == [
            {
                "topic": "t",
                "partition": 0,
                "offset": 5,
                "leader_epoch": 2,
                "metadata": "note",
                "committed_ms": 9,
            }
        ]

    def test_one_of_the_new_protocol_is_described_with_what_its_members_have(
        self, groups: Api
    ) -> None:
        assigned = frozenset(
            TopicIdPartition(of, number)
            for of in (topic_id(groups, "t"), UUID(int=9))
            for number in (1, 0)
        )
        member = ConsumerMember(
            member_id="one",
            instance_id="i",
            client_id="client",
            client_host="/h",
            assigned=assigned,
        )
        state = ConsumerGroupState(
            assignment_epoch=3, topics_hash=HASH_OF_NO_TOPICS, members=(member,)
        )
        put_group(groups, "new", consumer=state)
        found = groups.done("GET", "/group", group_id="new")
        assert (found["state"], found["generation"]) == ("Reconciling", 3)
        assert found["members"] == [
            {
                "member_id": "one",
                "group_instance_id": "i",
                "client_id": "client",
                "client_host": "/h",
                "assignment": [{"topic": "t", "partitions": [0, 1]}],
            }
        ]
        (listed,) = groups.done("GET", "/groups", state="Reconciling")["groups"]
        assert (listed["group_id"], listed["member_count"]) == ("new", 1)
        assert groups("DELETE", "/group", group_id="new").problem == (409, "NON_EMPTY_GROUP")

    def test_a_share_group_is_described_reset_and_deleted_when_empty(self, groups: Api) -> None:
        assigned = frozenset({TopicIdPartition(topic_id(groups, "t"), 1)})
        member = ShareMember(
            member_id="one", client_id="client", client_host="/h", assigned=assigned
        )
        state = ShareGroupState(
            assignment_epoch=3, topics_hash=HASH_OF_NO_TOPICS, members=(member,)
        )
        put_group(groups, "shared", share=state)
        found = groups.done("GET", "/group", group_id="shared")
        assert (found["state"], found["protocol_type"]) == ("Stable", "share")
        assert found["members"] == [
            {
                "member_id": "one",
                "group_instance_id": None,
                "client_id": "client",
                "client_host": "/h",
                "assignment": [{"topic": "t", "partitions": [1]}],
            }
        ]
        assert groups("DELETE", "/group", group_id="shared").problem == (409, "NON_EMPTY_GROUP")
        put_group(groups, "free", share=dataclasses.replace(state, members=()))
        reset = {"topics": [{"topic": "t"}], "to": "offset", "offset": 7}
        refused = groups("POST", "/group/offsets/reset", reset, group_id="shared")
        assert refused.problem == (409, "NON_EMPTY_GROUP")
        read = SharePartitionRecord(
            group_id="free",
            topic_id=topic_id(groups, "t"),
            partition=0,
            start_offset=3,
            batches=(StateBatch(4, 5, RecordState.ACKNOWLEDGED, 1),),
        )
        groups.commit(put(read))
        assert starts(groups, "free") == {0: 3}
        groups.done("POST", "/group/offsets/reset", reset, group_id="free")
        assert starts(groups, "free") == {0: 7, 1: 7}
        item = groups.runner.run(groups.cluster.store.get(read.item_id))
        assert item is not None
        written = SharePartitionRecord.from_item(item)
        assert (written.batches, written.state_epoch) == ((), 1), "records would stay done"
        groups.done("DELETE", "/group", group_id="free")
        assert groups("GET", "/group", group_id="free").problem == (404, "GROUP_ID_NOT_FOUND")

    def test_an_empty_one_is_deleted_and_one_with_members_is_not(self, groups: Api) -> None:
        put_group(groups, "g")
        put_group(groups, "m", members=(a_member(),))
        assert groups.done("DELETE", "/group", group_id="g") == {"group_id": "g"}
        assert groups("DELETE", "/group", group_id="g").problem == (404, "GROUP_ID_NOT_FOUND")
        assert groups("DELETE", "/group", group_id="m").problem == (409, "NON_EMPTY_GROUP")
        assert [g["group_id"] for g in groups.done("GET", "/groups")["groups"]] == ["m"]

    def test_ids_that_no_group_can_have_are_refused(self, groups: Api) -> None:
        answer = groups("GET", "/group", group_id="x" * 1001)
        assert answer.problem == (422, "INVALID_GROUP_ID")
        assert "1 to 1000 bytes, not 1001" in answer.body["detail"]

    def test_without_any_group_ever_there_is_none(self, api: Api) -> None:
        assert api.done("GET", "/groups")["groups"] == []
        assert api("GET", "/group", group_id="g").problem == (404, "GROUP_ID_NOT_FOUND")


class TestOffsetsReset:
    path = "/group/offsets/reset"

    def test_to_earliest_is_the_log_start_of_every_partition(self, groups: Api) -> None:
        put_group(groups, "g")
        begun = dataclasses.replace(partition_of(groups, "t", 1), log_start_offset=30)
        groups.commit(put(begun))
        done = groups.done(
            "POST", self.path, {"to": "earliest", "topics": [{"topic": "t"}]}, group_id="g"
        )
        assert [(o["partition"], o["offset"], o["is_verified"]) for o in done["offsets"]] == [
            (0, 0, True),
            (1, 30, True),
        ]
        found = groups.done("GET", "/group", group_id="g")["offsets"]
        assert [(o["partition"], o["offset"]) for o in found] == [(0, 0), (1, 30)]

    def test_validation_changes_nothing(self, groups: Api) -> None:
        put_group(groups, "g")
        body = {"to": "earliest", "topics": [{"topic": "t"}], "validate_only": True}
        assert groups.done("POST", self.path, body, group_id="g")["is_applied"] is False
        assert groups.done("GET", "/group", group_id="g")["offsets"][0]["offset"] == 5

    def test_to_an_offset_says_whether_the_log_is_known_to_reach_it(self, groups: Api) -> None:
        put_group(groups, "g")
        a_segment(groups, 0, 10)
        for offset, is_verified in ((10, True), (11, False)):
            body = {"to": "offset", "offset": offset, "topics": [{"topic": "t", "partitions": [0]}]}
            (one,) = groups.done("POST", self.path, body, group_id="g")["offsets"]
            assert (one["offset"], one["is_verified"]) == (offset, is_verified)

    def test_to_an_offset_below_the_log_start_is_refused(self, groups: Api) -> None:
        put_group(groups, "g")
        groups.commit(put(dataclasses.replace(partition_of(groups, "t"), log_start_offset=30)))
        body = {"to": "offset", "offset": 29, "topics": [{"topic": "t", "partitions": [0]}]}
        answer = groups("POST", self.path, body, group_id="g")
        assert answer.problem == (422, "OFFSET_OUT_OF_RANGE")
        assert "log start offset 30" in answer.body["detail"]

    @pytest.mark.parametrize("target", [{"to": "latest"}, {"to": "timestamp", "timestamp_ms": 5}])
    def test_what_only_a_leader_knows_is_refused_and_says_whom_to_ask(
        self, groups: Api, target: dict[str, object]
    ) -> None:
        put_group(groups, "g")
        leader = partition_of(groups, "t").leader
        body = {**target, "topics": [{"topic": "t", "partitions": [0]}]}
        answer = groups("POST", self.path, body, group_id="g")
        assert answer.problem == (422, "INVALID_REQUEST")
        assert f"leader of t-0 (broker {leader} at node{leader}:9092)" in answer.body["detail"]
        assert groups.done("GET", "/group", group_id="g")["offsets"][0]["offset"] == 5

    @pytest.mark.parametrize(
        ("group_id", "body", "status", "error"),
        [
            ("x", {"to": "earliest", "topics": [{"topic": "t"}]}, 404, "GROUP_ID_NOT_FOUND"),
            ("m", {"to": "earliest", "topics": [{"topic": "t"}]}, 409, "NON_EMPTY_GROUP"),
            ("g", {"to": "earliest", "topics": [{"topic": "u"}]}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("g", {"to": "earliest", "topics": [{"topic": "t", "partitions": [2]}]}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("g", {"to": "earliest", "topics": [{"topic": "t"}, {"topic": "t"}]}, 422, "INVALID_REQUEST"),
            ("g", {"to": "earliest", "topics": []}, 400, "INVALID_REQUEST"),
            ("g", {"to": "offset", "topics": [{"topic": "t"}]}, 422, "INVALID_REQUEST"),
            ("g", {"to": "earliest", "offset": 1, "topics": [{"topic": "t"}]}, 422, "INVALID_REQUEST"),
            ("g", {"to": "yesterday", "topics": [{"topic": "t"}]}, 400, "INVALID_REQUEST"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_reset_has_kafkas_error(
        self, groups: Api, group_id: str, body: object, status: int, error: str
    ) -> None:
        put_group(groups, "g")
        put_group(groups, "m", members=(a_member(),))
        answer = groups("POST", self.path, body, group_id=group_id)
        assert answer.problem == (status, error)


class TestReassignments:
    def test_one_is_started_listed_and_cancelled(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "assignments": [[1], [1]]})
        path = "/topics/t/partitions/0/reassignment"
        begun = api("PUT", path, {"replicas": [2]})
        moving = {"topic": "t", "partition": 0, "replicas": [2, 1], "adding": [2], "removing": [1]}
        assert (begun.status, begun.body) == (202, {"reassignments": [moving]})
        assert api.done("GET", "/reassignments") == {"reassignments": [moving]}
        assert api.done("GET", "/reassignments", topic="u") == {"reassignments": []}
        assert api.done("DELETE", path) == {"reassignments": []}
        assert partition_of(api, "t").replicas == (1,)
        assert api("DELETE", path).problem == (404, "NO_REASSIGNMENT_IN_PROGRESS")

    def test_what_cannot_be_reassigned_has_kafkas_error(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "assignments": [[1]]})
        path = "/topics/t/partitions/0/reassignment"
        for replicas in ([], [9], [1, 1]):
            answer = api("PUT", path, {"replicas": replicas})
            assert answer.problem == (422, "INVALID_REPLICA_ASSIGNMENT")
        same_count = {"replicas": [1, 2], "allow_replication_factor_change": False}
        assert api("PUT", path, same_count).problem == (422, "INVALID_REPLICATION_FACTOR")
        elsewhere = "/topics/t/partitions/7/reassignment"
        assert api("PUT", elsewhere, {"replicas": [1]}).problem == (
            404,
            "UNKNOWN_TOPIC_OR_PARTITION",
        )


class TestDrain:
    def test_others_in_sync_lead_and_are_preferred_from_then_on(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "t", "assignments": [[1, 2], [2, 1], [1, 2]]})
        drained = api.done("POST", "/brokers/1/drain")
        assert (drained["moved_count"], drained["kept"], drained["is_complete"]) == (2, [], True)
        for number in range(3):
            partition = partition_of(api, "t", number)
            assert (partition.leader, partition.replicas) == (2, (2, 1))
            assert set(partition.isr) == {1, 2}
            assert partition.leader_epoch == (0 if number == 1 else 1)
        assert api.done("POST", "/brokers/1/drain")["moved_count"] == 0

    def test_what_nobody_else_can_lead_stays_and_is_named(self, api: Api) -> None:
        api.done("POST", "/topics", {"name": "alone", "assignments": [[1]]})
        api.done("POST", "/topics", {"name": "left", "assignments": [[1, 3]]})
        drained = api.done("POST", "/brokers/1/drain")
        assert drained["moved_count"] == 0
        assert [(k["topic"], k["detail"]) for k in drained["kept"]] == [
            ("alone", "The partition has no other replica."),
            ("left", "No other replica is in sync and alive."),
        ]
        assert partition_of(api, "left").leader == 1

    def test_a_broker_whose_lease_lapsed_between_requests_gets_nothing(
        self, tmp_path: Path
    ) -> None:
        with new_cluster(tmp_path, node_config=NodeConfig(broker_session_timeout_ms=300)) as api:
            api.done("POST", "/topics", {"name": "t", "assignments": [[1, 2]]})
            time.sleep(0.4)
            drained = api.done("POST", "/brokers/1/drain")
            assert [k["topic"] for k in drained["kept"]] == ["t"]

    def test_a_broker_that_never_was_is_404(self, api: Api) -> None:
        answer = api("POST", "/brokers/9/drain")
        assert answer.problem == (404, "BROKER_ID_NOT_REGISTERED")
        assert "registered are 1, 2, 3" in answer.body["detail"]


def a_member(assignment: bytes | None = None) -> GroupMember:
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    return GroupMember(
        member_id="m-1" if assignment is None else "m-2",
        group_instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=(("range", b""),),
        assignment=encode_assignment(both) if assignment is None else assignment,
    )


def test_a_damaged_group_is_500_and_named_and_hides_no_other(groups: Api) -> None:
    put_group(groups, "g")
    put_group(groups, "h")
    shard = shard_of_group("h", GROUP_SHARDS)
    item_id = ItemKey(group_collection(shard), "h")
    groups.commit(Write(item_id, {"phase": 7}, ANY_VERSION, is_logged=False))
    assert [g["group_id"] for g in groups.done("GET", "/groups")["groups"]] == ["g"]
    for method in ("GET", "DELETE"):
        answer = groups(method, "/group", group_id="h")
        assert answer.problem == (500, "UNKNOWN_SERVER_ERROR")
        assert f"group:{shard}/h" in answer.body["detail"]


def test_a_damaged_index_object_is_500_and_named(tmp_path: Path) -> None:
    body = {
        "to": "timestamp",
        "timestamp_ms": 0,
        "topics": [{"topic": "t", "partitions": [0]}],
        "validate_only": True,
    }
    (tmp_path / "objects").mkdir()
    with new_cluster(tmp_path, objects_url=f"file://{tmp_path}/objects") as api:
        api.done("POST", "/topics", {"name": "__consumer_offsets", "partition_count": GROUP_SHARDS})
        api.done("POST", "/topics", {"name": "t", "partition_count": 2})
        put_group(api, "g")
        a_segment(api, 0, 10)
        gone = api("POST", "/group/offsets/reset", body, group_id="g")
        assert gone.problem == (503, "KAFKA_STORAGE_ERROR")
        (key,) = [word for word in gone.body["detail"].split("'") if word.endswith(".index")]
        objects = api.cluster.objects()
        api.runner.run(objects.put(key, b"not an index"))
        damaged = api("POST", "/group/offsets/reset", body, group_id="g")
        assert damaged.problem == (500, "KAFKA_STORAGE_ERROR")
        assert key in damaged.body["detail"]


def test_an_object_store_that_cannot_be_is_500_and_only_for_who_needs_it(tmp_path: Path) -> None:
    with new_cluster(tmp_path, objects_url="ftp://x") as api:
        api.done("POST", "/topics", {"name": "__consumer_offsets", "partition_count": GROUP_SHARDS})
        api.done("POST", "/topics", {"name": "t"})
        put_group(api, "g")
        body = {"to": "timestamp", "timestamp_ms": 0, "topics": [{"topic": "t"}]}
        answer = api("POST", "/group/offsets/reset", body, group_id="g")
        assert answer.problem == (500, "UNKNOWN_SERVER_ERROR")
        assert "TIDELOG_OBJECTS" in answer.body["detail"]


def test_a_damaged_partition_hides_no_other_and_is_500_to_who_would_change_it(api: Api) -> None:
    api.done("POST", "/topics", {"name": "t", "partition_count": 2})
    api.done("POST", "/topics", {"name": "u"})
    partition = partition_of(api, "t")
    api.commit(Write(partition.item_id, {"replicas": "x"}, ANY_VERSION))
    assert [topic["name"] for topic in api.done("GET", "/topics")["topics"]] == ["t", "u"]
    found = api.done("GET", "/topics/t/partitions")["partitions"]
    assert [p["leader"] in (None, -1) for p in found] == [True, False]
    api.done("POST", "/topics", {"name": "v"})
    answer = api("PUT", "/topics/t/partitions/0/reassignment", {"replicas": [2]})
    assert answer.problem == (500, "UNKNOWN_SERVER_ERROR")
    assert f"{partition.topic_id}" in answer.body["detail"]
    assert "Traceback" not in answer.body["detail"]
