"""Consumer groups of KIP-848, and classic members that move to them and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.kafka.test_groups import commit, described, heartbeat, join, stable, sync
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
# Of topic "pair"; like test_groups.SUBSCRIPTION, but it names a topic.
TO_PAIR = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x04pair" + b"\xff\xff\xff\xff"
CLASSIC = [{"name": "range", "metadata": TO_PAIR}]

# A broker may say so before it has loaded a group that is new to it.
STARTING = {"coordinator_load_in_progress", "coordinator_not_available", "not_coordinator"}


def beat(
    peer: Peer,
    group: str,
    member: str,
    epoch: int,
    *,
    version: int = 1,
    owned: dict[str, list[int]] | None = None,
    **fields: Any,
) -> Any:
    """Send one heartbeat; its answer's message is compared word for word."""
    if "topics" in fields:
        fields["subscribed_topic_names"] = fields.pop("topics")
    if owned is not None:
        fields["topic_partitions"] = [
            {"topic_id": peer.topic_ids[topic], "partitions": numbers}
            for topic, numbers in owned.items()
        ]
    given = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "rebalance_timeout": -1,
        "topic_partitions": None,
        "subscribed_topic_names": None,
        **fields,
    }
    answer = peer.until(
        lambda: peer.call("consumer_group_heartbeat", version, **given),
        lambda answer: answer["error_code"] not in STARTING,
    )
    message = answer.pop("error_message")
    for topic in (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]:
        topic["partitions"] = sorted(topic["partitions"])
    return {**answer, "says": message and message.replace(answer["member_id"] or "\0", "its id")}


def enter(peer: Peer, group: str, member: str, *topics: str, **fields: Any) -> Any:
    """Join with a member id of the caller's."""
    peer.await_coordinator(group)
    given = {"topics": list(topics), "rebalance_timeout": 5000, "owned": {}, **fields}
    return beat(peer, group, member, 0, **given)


def make_pair(peer: Peer) -> None:
    """Create the topic of most cases, of two partitions, unless it is there."""
    if "pair" not in peer.topic_ids:
        peer.create_topic("pair", partitions=2)


def seen(peer: Peer, *groups: str, version: int = 1) -> Any:
    """Return ConsumerGroupDescribe's answer."""
    answer = peer.call(
        "consumer_group_describe",
        version,
        group_ids=list(groups),
        include_authorized_operations=False,
    )
    for group in answer["groups"]:
        for member in group["members"]:
            # Kafka answers an empty pattern or null for a member without one.
            member["subscribed_topic_regex"] = member.get("subscribed_topic_regex") or None
            for part in ("assignment", "target_assignment"):
                for topic in member[part]["topic_partitions"]:
                    topic["partitions"] = sorted(topic["partitions"])
    return answer


@compared
def test_heartbeats_that_are_refused(peer: Peer) -> Observations:
    make_pair(peer)
    peer.await_coordinator("refused")
    enter(peer, "refused", "someone", "pair")
    cases: dict[str, tuple[str, int, dict[str, Any]]] = {
        "unknown group": ("someone", 1, {"group_id": "refused-nowhere"}),
        "leaving an unknown group": ("someone", -1, {"group_id": "refused-nowhere"}),
        "empty group": ("someone", 1, {"group_id": ""}),
        "blank group": ("someone", 1, {"group_id": "  "}),
        "no member": ("", 1, {}),
        "blank member": (" ", 1, {}),
        "no member, leaving": ("", -1, {}),
        "no member, leaving for now": ("", -2, {"instance_id": "i"}),
        "unknown member": ("nobody", 1, {}),
        "unknown member leaves": ("nobody", -1, {}),
        "newer epoch": ("someone", 2, {}),
        "older epoch": (
            "someone",
            0,
            {"topics": ["pair"], "rebalance_timeout": 5000, "owned": {"pair": [0]}},
        ),
        "older epoch, with partitions": ("someone", 0, {}),
        "joining without timeout": ("new", 0, {"topics": ["pair"], "owned": {}}),
        "joining without partitions": ("new", 0, {"topics": ["pair"], "rebalance_timeout": 5000}),
        "joining without topics": ("new", 0, {"rebalance_timeout": 5000, "owned": {}}),
        "epoch -3": ("someone", -3, {}),
        "leaving for now, not static": ("someone", -2, {}),
        "empty instance": ("someone", 1, {"instance_id": ""}),
        "empty rack": ("someone", 1, {"rack_id": ""}),
        "unknown instance": ("someone", 1, {"instance_id": "nobody"}),
        "unknown instance leaves": ("someone", -1, {"instance_id": "nobody"}),
        "unknown assignor": ("someone", 1, {"server_assignor": "sticky"}),
    }
    for label, (member, epoch, fields) in cases.items():
        for version in (0, 1):
            given = {"group_id": "refused", **fields}
            yield (
                f"{label} {version}",
                beat(peer, given.pop("group_id"), member, epoch, version=version, **given),
            )
    for pattern in ("(", "a**", "[z-a]", "(?=a)", r"\1", "x{1001}"):
        answer = beat(
            peer,
            "refused",
            "new",
            0,
            rebalance_timeout=5000,
            owned={},
            subscribed_topic_regex=pattern,
        )
        yield f"pattern {pattern}", answer["error_code"]
    yield "unharmed", beat(peer, "refused", "someone", 1)


@compared
def test_a_member_joins_stays_and_leaves(peer: Peer) -> Observations:
    make_pair(peer)
    yield "first", enter(peer, "alone", "one", "pair")
    yield "again, as if unheard", enter(peer, "alone", "one", "pair")
    yield "nothing new", beat(peer, "alone", "one", 1)
    yield (
        "everything anew",
        beat(
            peer, "alone", "one", 1, topics=["pair"], rebalance_timeout=5000, owned={"pair": [0, 1]}
        ),
    )
    yield "other topics", beat(peer, "alone", "one", 1, topics=["pair", "alone-nowhere"])
    yield "no topics", beat(peer, "alone", "one", 2, topics=[])
    yield "not yet revoked", beat(peer, "alone", "one", 2)
    yield "revoked", beat(peer, "alone", "one", 2, owned={})
    yield "described", seen(peer, "alone")
    yield "leaves", beat(peer, "alone", "one", -1)
    yield "empty", seen(peer, "alone")
    yield "gone", beat(peer, "alone", "one", 3)
    yield "back", enter(peer, "alone", "one", "pair")
    yield "without topics", enter(peer, "aimless", "one")
    yield "of no topic that is there", enter(peer, "hopeless", "one", "alone-nowhere")
    yield "described, all", seen(peer, "aimless", "hopeless")


@compared
def test_partitions_pass_from_member_to_member(peer: Peer) -> Observations:
    make_pair(peer)
    yield "first", enter(peer, "passing", "one", "pair")
    second = enter(peer, "passing", "two", "pair")
    yield "second waits", second
    given = beat(peer, "passing", "one", 1)
    yield (
        "first is to give up one",
        {**given, "assignment": len(given["assignment"]["topic_partitions"])},
    )
    yield "state", [g["group_state"] for g in seen(peer, "passing")["groups"]]
    yield "second still waits", beat(peer, "passing", "two", 2)
    kept = given["assignment"]["topic_partitions"][0]["partitions"]
    yield (
        "first has given it up",
        {**beat(peer, "passing", "one", 1, owned={"pair": kept}), "assignment": 0},
    )
    last = beat(peer, "passing", "two", 2)
    taken = last["assignment"]["topic_partitions"][0]["partitions"]
    yield "second has it", {**last, "assignment": sorted(kept + taken)}
    yield "stable", [g["group_state"] for g in seen(peer, "passing")["groups"]]
    yield "second leaves", beat(peer, "passing", "two", -1)
    yield "assigning", [g["group_state"] for g in seen(peer, "passing")["groups"]]
    yield "first has all", beat(peer, "passing", "one", 2)


@compared
def test_static_consumers(peer: Peer) -> Observations:
    make_pair(peer)
    yield "first", enter(peer, "fixed", "one", "pair", instance_id="i")
    yield "unreleased", enter(peer, "fixed", "two", "pair", instance_id="i")
    yield "wrong member", beat(peer, "fixed", "two", 1, instance_id="i")
    yield "leaves for now", beat(peer, "fixed", "one", -2, instance_id="i")
    yield "gone for now", seen(peer, "fixed")
    yield "commit while gone", commit(peer, "fixed", "pair", member="one", generation=1, version=9)
    yield "back", enter(peer, "fixed", "two", "pair", instance_id="i")
    yield "fenced", beat(peer, "fixed", "one", 1, instance_id="i")
    yield "described", seen(peer, "fixed")
    yield "wrong member leaves", beat(peer, "fixed", "one", -1, instance_id="i")
    yield "leaves", beat(peer, "fixed", "two", -1, instance_id="i")
    yield "empty", seen(peer, "fixed")


@compared
def test_a_full_consumer_group(peer: Peer) -> Observations:
    make_pair(peer)
    for index in range(3):
        yield str(index), enter(peer, "crowd", f"m{index}", "pair")["error_code"]
    yield "over", enter(peer, "crowd", "m3", "pair")
    yield "a member", beat(peer, "crowd", "m0", 1)["error_code"]
    yield "a member joins again", enter(peer, "crowd", "m0", "pair")["error_code"]


@compared
def test_offsets_of_a_consumer_group(peer: Peer) -> Observations:
    make_pair(peer)
    enter(peer, "epochs", "one", "pair")
    for version in (8, 9):
        for member, epoch in (
            ("one", 1),
            ("one", 0),
            ("one", 2),
            ("one", -1),
            ("nobody", 1),
            ("", -1),
        ):
            yield (
                f"commit {member!r} {epoch} {version}",
                commit(peer, "epochs", "pair", member=member, generation=epoch, version=version),
            )
    yield (
        "commit to nowhere 8",
        commit(peer, "epochs-nowhere", "pair", member="one", generation=1, version=8),
    )
    yield (
        "commit to nowhere 9",
        commit(peer, "epochs-nowhere", "pair", member="one", generation=1, version=9),
    )
    topics = [{"name": "pair", "partition_indexes": [0]}]
    for group in ("epochs", "epochs-nowhere"):
        for member, epoch in (
            ("one", 1),
            ("one", 0),
            ("one", 2),
            ("nobody", 1),
            ("nobody", -1),
            (None, -1),
        ):
            for wanted in (topics, None):
                asked = {
                    "group_id": group,
                    "topics": wanted,
                    "member_id": member,
                    "member_epoch": epoch,
                }
                yield (
                    f"fetch {group} {member} {epoch} {wanted is None}",
                    peer.call("offset_fetch", 9, groups=[asked]),
                )
    yield "fetch 8", peer.call("offset_fetch", 8, groups=[{"group_id": "epochs", "topics": topics}])
    yield "delete subscribed", delete_offsets(peer, "epochs")
    yield "delete group", peer.call("delete_groups", 2, groups_names=["epochs"])
    beat(peer, "epochs", "one", -1)
    yield "commit to the empty one", commit(peer, "epochs", "pair")
    yield "delete unsubscribed", delete_offsets(peer, "epochs")
    yield "delete empty group", peer.call("delete_groups", 2, groups_names=["epochs"])
    yield "deleted", seen(peer, "epochs")


def delete_offsets(peer: Peer, group: str) -> Any:
    """Return OffsetDelete's answer."""
    topics = [{"name": "pair", "partitions": [{"partition_index": 0}]}]
    return peer.call("offset_delete", 0, group_id=group, topics=topics)


@compared
def test_both_kinds_are_described_and_listed(peer: Peer) -> Observations:
    make_pair(peer)
    enter(peer, "kind-new", "one", "pair")
    stable(peer, "kind-old")
    ours = ("kind-new", "kind-old")
    for version in (0, 1):
        yield f"new {version}", seen(peer, *ours, "kind-nowhere", "", version=version)
    for version in (5, 6):
        yield f"old {version}", described(peer, *ours, "kind-nowhere", version=version)
    for fields in (
        {"states_filter": [], "types_filter": []},
        {"states_filter": ["stable"], "types_filter": []},
        {"states_filter": [], "types_filter": ["consumer"]},
        {"states_filter": [], "types_filter": ["Classic"]},
        {"states_filter": ["Empty"], "types_filter": ["consumer"]},
    ):
        listed = peer.call("list_groups", 5, **fields)
        listed["groups"] = [g for g in listed["groups"] if g["group_id"] in ours]
        yield f"listed {fields}", listed


@compared
def test_patterns(peer: Peer) -> Observations:
    peer.create_topic("pattern-a")
    peer.create_topic("pattern-b")
    for group, pattern in (
        ("pattern-some", "pattern-[ab]"),
        ("pattern-part", "pattern|pattern-b"),
        ("pattern-any-case", "(?i)PATTERN-A"),
        ("pattern-empty", ""),
        ("pattern-internal", "__consumer_.*"),
    ):
        enter(peer, group, "one", topics=None, subscribed_topic_regex=pattern)
        answer = seen(peer, group)["groups"][0]
        if group != "pattern-empty":
            # Kafka resolves patterns on another thread and assigns in a later heartbeat.
            answer = peer.until(lambda group=group: resolved(peer, group), is_assigned)
        (member,) = answer["members"]
        yield group, (member["subscribed_topic_regex"], _topics(member["target_assignment"]))


def resolved(peer: Peer, group: str) -> Any:
    """Send a heartbeat of the group's only member; return the group after it."""
    epoch = seen(peer, group)["groups"][0]["members"][0]["member_epoch"]
    beat(peer, group, "one", epoch)
    return seen(peer, group)["groups"][0]


def is_assigned(group: Any) -> bool:
    """Return whether the group's only member is to have anything."""
    return bool(_topics(group["members"][0]["target_assignment"]))


def _topics(assignment: Any) -> list[str]:
    return sorted(topic["topic_name"] for topic in assignment["topic_partitions"])


@compared
def test_topics_come_and_grow(peer: Peer) -> Observations:
    yield "before it is there", enter(peer, "growing", "one", "grown")
    peer.create_topic("grown")
    answer = peer.until(lambda: beat(peer, "growing", "one", 1), lambda a: a["member_epoch"] == 2)
    yield "when it is there", answer
    topics = [{"name": "grown", "count": 3, "assignments": None}]
    peer.call("create_partitions", 3, topics=topics, timeout=5000, validate_only=False)
    answer = peer.until(lambda: beat(peer, "growing", "one", 2), lambda a: a["member_epoch"] == 3)
    yield "when it has more", answer
    peer.call("delete_topics", 6, topics=[{"name": "grown"}], timeout=5000)
    peer.await_gone("grown")
    peer.until(lambda: beat(peer, "growing", "one", 3), lambda a: a["assignment"] is not None)
    yield "when it is gone", beat(peer, "growing", "one", 3, owned={})


@compared
def test_a_group_moves_to_the_new_protocol_and_back(peer: Peer) -> Observations:
    make_pair(peer)
    peer.await_coordinator("moving")
    joined = join(peer, "moving", protocols=CLASSIC)
    old = joined["member_id"]
    both = b"\x00\x00\x00\x00\x00\x01\x00\x04pair\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"
    yield "classic", sync(peer, "moving", old, assignments=[{"member_id": old, "assignment": both}])
    yield "the first consumer", enter(peer, "moving", "new", "pair")
    yield "mixed", seen(peer, "moving")
    yield "not classic", described(peer, "moving", version=6)
    yield "asked to join", heartbeat(peer, "moving", old)
    yield "stale", sync(peer, "moving", old)
    yield (
        "other protocol",
        join(peer, "moving", member_id=old, protocols=[{"name": "x", "metadata": TO_PAIR}]),
    )
    answer = join(peer, "moving", member_id=old, protocols=CLASSIC)
    yield "joins", answer
    generation = answer["generation_id"]
    yield "wrong generation", heartbeat(peer, "moving", old, generation + 1)
    yield "commits", commit(peer, "moving", "pair", member=old, generation=generation)
    yield "commits stale", commit(peer, "moving", "pair", member=old, generation=generation + 1)
    answer = sync(peer, "moving", old, generation)
    yield "syncs", {**answer, "assignment": len(answer["assignment"])}
    yield "beats", heartbeat(peer, "moving", old, generation)
    yield "the consumer has its share", {**beat(peer, "moving", "new", 2), "assignment": 1}
    yield "a classic heartbeat of the consumer", heartbeat(peer, "moving", "new", 2)
    yield "the consumer leaves", beat(peer, "moving", "new", -1)
    yield "not a consumer group", seen(peer, "moving")
    yield "not a consumer group's member", beat(peer, "moving", "new", 2)
    yield "rebalances", heartbeat(peer, "moving", old, generation)
    answer = join(peer, "moving", member_id=old, protocols=CLASSIC)
    yield (
        "leads",
        {
            **answer,
            "members": len(answer["members"]),
            "generation_id": answer["generation_id"] > generation,
        },
    )


@compared
def test_a_group_of_other_workers_cannot_be_joined_by_consumers(peer: Peer) -> Observations:
    make_pair(peer)
    stable_worker = join(peer, "workers", protocol_type="connect")
    yield "worker", stable_worker["error_code"]
    yield "consumer", enter(peer, "workers", "new", "pair")
    yield "empty name", enter(peer, "workers-empty", "new", "pair")
