"""Share groups of KIP-932: their members and their administration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.kafka.test_consumer_groups import STARTING, beat, delete_offsets, enter, make_pair
from tests.kafka.test_consumer_groups import seen as seen_consumers
from tests.kafka.test_groups import commit, described, heartbeat, join, stable, sync
from tests.kafka.test_transactions import end, producer
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]


def share_beat(peer: Peer, group: str, member: str, epoch: int, **fields: Any) -> Any:
    """Send one heartbeat; its answer's message is compared word for word."""
    if "topics" in fields:
        fields["subscribed_topic_names"] = fields.pop("topics")
    given = {"subscribed_topic_names": None, **fields}
    answer = peer.until(
        lambda: peer.call(
            "share_group_heartbeat",
            1,
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            **given,
        ),
        lambda answer: answer["error_code"] not in STARTING,
    )
    message = re.sub(r"\(\d+\)", "(an epoch)", answer.pop("error_message") or "")
    for topic in (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]:
        topic["partitions"] = sorted(topic["partitions"])
    return {**answer, "says": message}


def share_enter(peer: Peer, group: str, member: str, *topics: str) -> Any:
    """Join with a member id of the caller's."""
    peer.await_coordinator(group)
    return share_beat(peer, group, member, 0, topics=list(topics))


def epoch_of(peer: Peer, group: str, member: str) -> int:
    """Return the member's epoch."""
    (described_group,) = seen(peer, group)["groups"]
    return next(m["member_epoch"] for m in described_group["members"] if m["member_id"] == member)


def settled(peer: Peer, group: str, member: str, *topics: str) -> list[int]:
    """Join, and send heartbeats until the member has partitions; return them.

    Kafka first has its share coordinator make the share partitions, and assigns then.
    """
    answer = share_enter(peer, group, member, *topics)
    while not (answer["assignment"] or {}).get("topic_partitions"):
        answer = share_beat(peer, group, member, answer["member_epoch"], topics=list(topics))
        if not answer["assignment"] and (found := has(peer, group, member)):
            return found
    (topic,) = answer["assignment"]["topic_partitions"]
    return [int(number) for number in topic["partitions"]]


def has(peer: Peer, group: str, member: str) -> list[int]:
    """Return the partitions of the member of one topic."""
    (described_group,) = seen(peer, group)["groups"]
    (mine,) = [m for m in described_group["members"] if m["member_id"] == member]
    return [n for t in mine["assignment"]["topic_partitions"] for n in t["partitions"]]


def seen(peer: Peer, *groups: str) -> Any:
    """Return ShareGroupDescribe's answer."""
    answer = peer.call(
        "share_group_describe", 1, group_ids=list(groups), include_authorized_operations=False
    )
    for group in answer["groups"]:
        for member in group["members"]:
            member["subscribed_topic_names"].sort()
            for topic in member["assignment"]["topic_partitions"]:
                topic["partitions"] = sorted(topic["partitions"])
    return answer


def start_offsets(peer: Peer, group: str, topics: list[dict[str, Any]] | None = None) -> Any:
    """Return DescribeShareGroupOffsets' answer on one group."""
    wanted = [{"group_id": group, "topics": topics}]
    return peer.call("describe_share_group_offsets", 0, groups=wanted)


def alter(peer: Peer, group: str, *wanted: tuple[str, int, int]) -> Any:
    """Return AlterShareGroupOffsets' answer."""
    partitions: dict[str, list[dict[str, int]]] = {}
    for topic, partition, offset in wanted:
        asked = {"partition_index": partition, "start_offset": offset}
        partitions.setdefault(topic, []).append(asked)
    topics = [{"topic_name": topic, "partitions": some} for topic, some in partitions.items()]
    return peer.call("alter_share_group_offsets", 0, group_id=group, topics=topics)


def forget(peer: Peer, group: str, *topics: str) -> Any:
    """Return DeleteShareGroupOffsets' answer."""
    wanted = [{"topic_name": topic} for topic in topics]
    return peer.call("delete_share_group_offsets", 0, group_id=group, topics=wanted)


@compared
def test_share_heartbeats_that_are_refused(peer: Peer) -> Observations:
    make_pair(peer)
    settled(peer, "s-refused", "someone", "pair")
    epoch = epoch_of(peer, "s-refused", "someone")
    both = ["pair", "s-nonesuch"]
    epoch = share_beat(peer, "s-refused", "someone", epoch, topics=both)["member_epoch"]
    peer.await_coordinator("s-nowhere")
    cases: dict[str, tuple[str, int, dict[str, Any]]] = {
        "unknown group": ("someone", epoch, {"group": "s-nowhere"}),
        "leaving an unknown group": ("someone", -1, {"group": "s-nowhere"}),
        "empty group": ("someone", epoch, {"group": ""}),
        "blank group": ("someone", epoch, {"group": "  "}),
        "no member": ("", epoch, {}),
        "blank member": (" ", epoch, {}),
        "no member, joining": ("", 0, {"topics": ["pair"]}),
        "no member, leaving": ("", -1, {}),
        "unknown member": ("nobody", epoch, {}),
        "unknown member leaves": ("nobody", -1, {}),
        "newer epoch": ("someone", epoch + 1, {}),
        "older epoch": ("someone", epoch - 1, {}),
        "joining anew": ("someone", 0, {"topics": both}),
        "joining without topics": ("new", 0, {}),
        "joining with no topic": ("new", 0, {"topics": []}),
        "epoch -2": ("someone", -2, {}),
        "epoch -3": ("someone", -3, {}),
        "empty rack": ("someone", epoch, {"rack_id": ""}),
        "blank rack": ("someone", epoch, {"rack_id": " "}),
    }
    for label, (member, at, fields) in cases.items():
        given = {"group": "s-refused", **fields}
        answer = share_beat(peer, given.pop("group"), member, at, **given)
        yield label, {**answer, "member_epoch": answer["member_epoch"] == epoch}
    yield "both wrong", share_beat(peer, "", "", -9, rack_id="")["says"]
    yield "group and rack", share_beat(peer, "", "m", -9, rack_id="")["says"]
    yield "rack and epoch", share_beat(peer, "g", "m", -9, rack_id="")["says"]
    yield "unharmed", share_beat(peer, "s-refused", "someone", epoch)["error_code"]


@compared
def test_a_sharing_member_joins_stays_and_leaves(peer: Peer) -> Observations:
    make_pair(peer)
    yield "has", settled(peer, "s-alone", "one", "pair")
    epoch = epoch_of(peer, "s-alone", "one")
    again = share_beat(peer, "s-alone", "one", epoch)
    yield "nothing new", {**again, "member_epoch": again["member_epoch"] - epoch}
    again = share_beat(peer, "s-alone", "one", epoch, topics=["pair"])
    yield "nothing new, in full", {**again, "member_epoch": again["member_epoch"] - epoch}
    answer = share_beat(peer, "s-alone", "one", epoch, topics=["s-nonesuch"])
    yield "other topics", {**answer, "member_epoch": answer["member_epoch"] - epoch}
    answer = share_beat(peer, "s-alone", "one", epoch, topics=["pair", "s-nonesuch"])
    yield "as if unheard", {**answer, "member_epoch": answer["member_epoch"] - epoch}
    answer = share_beat(peer, "s-alone", "one", epoch)
    yield "too old", answer
    group = seen(peer, "s-alone")["groups"][0]
    epoch = group["group_epoch"]
    yield "described", without_epochs(group)
    yield "assigned", group["assignment_epoch"] - epoch
    yield "leaves", share_beat(peer, "s-alone", "one", -1)
    group = seen(peer, "s-alone")["groups"][0]
    yield "empty", without_epochs(group)
    yield "grown", group["group_epoch"] - epoch
    yield "gone", share_beat(peer, "s-alone", "one", epoch)
    yield "back", share_enter(peer, "s-alone", "one", "pair")["member_epoch"] - epoch


def without_epochs(group: Any) -> Any:
    """Return the described group without what depends on how often Kafka has assigned."""
    return {
        **group,
        "group_epoch": 0,
        "assignment_epoch": 0,
        "members": [{**member, "member_epoch": 0} for member in group["members"]],
    }


@compared
def test_a_single_partition_is_shared_by_all(peer: Peer) -> Observations:
    peer.create_topic("s-single")
    yield "one", settled(peer, "s-sharing", "one", "s-single")
    yield "two", settled(peer, "s-sharing", "two", "s-single")
    yield "three", settled(peer, "s-sharing", "three", "s-single")
    group = without_epochs(seen(peer, "s-sharing")["groups"][0])
    group["members"].sort(key=lambda member: str(member["client_id"]) + str(member["assignment"]))
    yield "described", group
    yield "over", share_enter(peer, "s-sharing", "four", "s-single")
    yield "a member joins again", share_enter(peer, "s-sharing", "three", "s-single")["error_code"]


@compared
def test_share_groups_and_the_requests_of_other_groups(peer: Peer) -> Observations:
    make_pair(peer)
    settled(peer, "s-kind", "one", "pair")
    yield "a consumer joins", enter(peer, "s-kind", "c", "pair")
    yield "a consumer beats", beat(peer, "s-kind", "one", 1)
    yield "a classic member joins", join(peer, "s-kind")
    yield "a classic member joins again", join(peer, "s-kind", member_id="one")
    yield "syncs", sync(peer, "s-kind", "one")
    yield "beats", heartbeat(peer, "s-kind", "one")
    members = [{"member_id": "one", "group_instance_id": None}]
    yield "leaves", peer.call("leave_group", 3, group_id="s-kind", members=members)
    yield "leaves 2", peer.call("leave_group", 2, group_id="s-kind", member_id="one")
    for member, epoch in (("one", 1), ("", -1), ("nobody", 1)):
        for version in (8, 9):
            answer = commit(
                peer, "s-kind", "pair", member=member, generation=epoch, version=version
            )
            yield f"commit {member!r} {epoch} {version}", answer
    topics = [{"name": "pair", "partition_indexes": [0]}]
    for member, epoch in ((None, -1), ("one", 1), ("nobody", 7)):
        asked = {"group_id": "s-kind", "topics": topics, "member_id": member, "member_epoch": epoch}
        yield f"fetch {member} {epoch}", peer.call("offset_fetch", 9, groups=[asked])
    yield "delete offsets", delete_offsets(peer, "s-kind")
    for version in (5, 6):
        yield f"described {version}", described(peer, "s-kind", version=version)
    yield "described as consumers", seen_consumers(peer, "s-kind")
    yield "delete", peer.call("delete_groups", 2, groups_names=["s-kind"])
    share_beat(peer, "s-kind", "one", -1)
    yield "empty: a consumer joins", enter(peer, "s-kind", "c", "pair")
    yield "empty: a classic member joins", join(peer, "s-kind")
    yield "empty: commit", commit(peer, "s-kind", "pair")
    yield "empty: delete", peer.call("delete_groups", 2, groups_names=["s-kind"])
    yield "deleted", seen(peer, "s-kind")
    yield "delete again", peer.call("delete_groups", 2, groups_names=["s-kind"])
    yield "free for consumers", enter(peer, "s-kind", "c", "pair")["error_code"]


@compared
def test_share_heartbeats_in_groups_of_other_kinds(peer: Peer) -> Observations:
    make_pair(peer)
    stable(peer, "s-old")
    enter(peer, "s-new", "one", "pair")
    peer.await_coordinator("s-offsets")
    commit(peer, "s-offsets", "pair")
    for group in ("s-old", "s-new", "s-offsets"):
        yield f"joins {group}", share_enter(peer, group, "m", "pair")
        yield f"beats {group}", share_beat(peer, group, "m", 1)
        yield f"leaves {group}", share_beat(peer, group, "m", -1)
    yield "described", seen(peer, "s-old", "s-new", "s-offsets", "s-nowhere")
    beat(peer, "s-new", "one", -1)
    yield "empty", share_enter(peer, "s-new", "m", "pair")


@compared
def test_share_groups_are_listed(peer: Peer) -> Observations:
    make_pair(peer)
    settled(peer, "s-listed", "one", "pair")
    settled(peer, "s-listed-empty", "one", "pair")
    share_beat(peer, "s-listed-empty", "one", -1)
    for states, types in (
        ([], []),
        ([], ["share"]),
        ([], ["SHARE", "classic"]),
        (["stable"], ["share"]),
        (["Empty"], ["share"]),
        (["Empty"], []),
        (["Dead"], ["share"]),
    ):
        listed = peer.call("list_groups", 5, states_filter=states, types_filter=types)
        ours = [g for g in listed["groups"] if g["group_id"].startswith("s-listed")]
        yield f"listed {states} {types}", {**listed, "groups": ours}
    listed = peer.call("list_groups", 4, states_filter=[])
    ours = [g for g in listed["groups"] if g["group_id"].startswith("s-listed")]
    yield "listed 4", {**listed, "groups": ours}


@compared
def test_start_offsets_of_share_groups(peer: Peer) -> Observations:
    make_pair(peer)
    peer.create_topic("s-aside")
    settled(peer, "s-offs", "one", "pair")
    both = [{"topic_name": "pair", "partitions": [0, 1, 5]}]
    nonesuch = [{"topic_name": "s-nonesuch", "partitions": [0]}]
    yield "of a topic", start_offsets(peer, "s-offs", both)
    yield (
        "of an unread topic",
        start_offsets(peer, "s-offs", [{"topic_name": "s-aside", "partitions": [0]}]),
    )
    yield "of no topic", start_offsets(peer, "s-offs", nonesuch)
    yield "of nothing", start_offsets(peer, "s-offs", [])
    yield "all", start_offsets(peer, "s-offs")
    for group in ("s-offs-nowhere", "", "s-offs-classic"):
        yield f"all of {group!r}", start_offsets(peer, group)
    yield "delete from members", forget(peer, "s-offs", "pair")
    share_beat(peer, "s-offs", "one", -1)
    stable(peer, "s-offs-classic")
    for group in ("s-offs-nowhere", "s-offs-classic", "", " "):
        yield f"delete {group!r}", forget(peer, group, "pair")
    yield "delete what is unread", forget(peer, "s-offs", "s-nonesuch", "s-aside")
    yield "delete nothing", forget(peer, "s-offs")
    yield "delete the group", peer.call("delete_groups", 2, groups_names=["s-offs"])
    yield "all gone", start_offsets(peer, "s-offs")


@compared
def test_start_offsets_are_altered(peer: Peer) -> Observations:
    make_pair(peer)
    settled(peer, "s-alter", "one", "pair")
    yield "under members", alter(peer, "s-alter", ("pair", 0, 3))
    share_beat(peer, "s-alter", "one", -1)
    stable(peer, "s-alter-classic")
    for group in ("s-alter-nowhere", "s-alter-classic", "", " "):
        yield f"of {group!r}", alter(peer, group, ("pair", 0, 3))
    yield "nothing", alter(peer, "s-alter")
    yield "no topic", alter(peer, "s-alter", ("s-nonesuch", 0, 0))
    yield "altered", alter(peer, "s-alter", ("pair", 0, 3), ("pair", 1, 4), ("pair", 7, 0))
    yield "described", start_offsets(peer, "s-alter")
    yield "deleted", forget(peer, "s-alter", "pair", "s-nonesuch")
    yield "described when deleted", start_offsets(peer, "s-alter")
    yield "deleted again", forget(peer, "s-alter", "pair")


@compared
def test_transactions_commit_no_offsets_of_share_groups(peer: Peer) -> Observations:
    make_pair(peer)
    settled(peer, "s-txn", "one", "pair")
    who = producer(peer, "s-txn")
    ids = {"transactional_id": "s-txn", "producer_id": who[0], "producer_epoch": who[1]}
    yield "added", peer.call("add_offsets_to_txn", 3, **ids, group_id="s-txn")
    part = {"partition_index": 0, "committed_offset": 1}
    topics = [{"name": "pair", "partitions": [part]}]
    for version in (2, 3, 5):
        for fields in ({}, {"member_id": "one", "generation_id": 1}):
            given = fields if version >= 3 else {}
            yield (
                f"committed {version} {len(fields)}",
                peer.call(
                    "txn_offset_commit", version, **ids, **given, group_id="s-txn", topics=topics
                ),
            )
    yield "ended", end(peer, "s-txn", who)
