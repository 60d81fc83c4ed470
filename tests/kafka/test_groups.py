"""Groups and their offsets: who may do what, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
ASSIGNMENT = SUBSCRIPTION  # both are: version, no topics, no data
PROTOCOL = {"name": "range", "metadata": SUBSCRIPTION}
JOIN = {
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [PROTOCOL],
}


def join(peer: Peer, group: str, *, version: int = 7, **fields: Any) -> Any:
    """Join, with the id that a first attempt is told to use."""
    peer.await_coordinator(group)
    given = {**JOIN, "group_id": group, **fields}
    if version < 5:
        del given["group_instance_id"]
    answer = peer.call("join_group", version, **given)
    if isinstance(answer, dict) and answer["error_code"] == "member_id_required":
        answer = peer.call("join_group", version, **{**given, "member_id": answer["member_id"]})
    return answer


def sync(peer: Peer, group: str, member: str, generation: int = 1, **fields: Any) -> Any:
    """Sync as the leader of one."""
    given = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": ASSIGNMENT}],
        **fields,
    }
    return peer.call("sync_group", 5, **given)


def stable(peer: Peer, group: str, **fields: Any) -> str:
    """Make a group of one member; return the member's id."""
    joined = join(peer, group, **fields)
    assert joined["error_code"] == "none", joined
    member = str(joined["member_id"])
    assert sync(peer, group, member)["error_code"] == "none"
    return member


def heartbeat(peer: Peer, group: str, member: str, generation: int = 1, **fields: Any) -> Any:
    """Return the answer to one heartbeat."""
    return peer.call(
        "heartbeat",
        4,
        group_id=group,
        generation_id=generation,
        member_id=member,
        **{"group_instance_id": None, **fields},
    )


def commit(
    peer: Peer,
    group: str,
    topic: str,
    *,
    member: str = "",
    generation: int = -1,
    version: int = 8,
    partition: int = 0,
    offset: int = 5,
    metadata: str | None = "note",
    **fields: Any,
) -> Any:
    """Commit one offset."""
    peer.await_coordinator(group or "any")
    part: dict[str, Any] = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_metadata": metadata,
    }
    if version >= 6:
        part["committed_leader_epoch"] = -1
    return peer.call(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[{"name": topic, "partitions": [part]}],
        **fields,
    )


@compared
def test_find_coordinator(peer: Peer) -> Observations:
    peer.await_coordinator("found")
    for version in range(7):
        for key_type in (0, 2, -1, 99):
            for key in ("found", ""):
                fields: dict[str, Any] = (
                    {"coordinator_keys": [key]} if version >= 4 else {"key": key}
                )
                if version >= 1:
                    fields["key_type"] = key_type
                elif key_type:
                    continue
                yield (
                    f"{version} {key_type} {key!r}",
                    peer.call("find_coordinator", version, **fields),
                )
    yield "many", peer.call("find_coordinator", 4, key_type=0, coordinator_keys=["a", "b", "a"])
    yield "none", peer.call("find_coordinator", 4, key_type=0, coordinator_keys=[])


@compared
def test_joins_that_are_refused(peer: Peer) -> Observations:
    peer.await_coordinator("joins")
    cases: dict[str, dict[str, Any]] = {
        "empty group": {"group_id": ""},
        "session too short": {"session_timeout": 5999},
        "session too long": {"session_timeout": 1_800_001},
        "session negative": {"session_timeout": -1},
        "unknown member": {"member_id": "nobody"},
        "no protocols": {"protocols": []},
        "no protocol type": {"protocol_type": ""},
        "instance, unknown member": {"group_instance_id": "static", "member_id": "nobody"},
        "instance, empty": {"group_instance_id": ""},
        "instance, wrong name": {"group_instance_id": "a b"},
        "instance, dots": {"group_instance_id": ".."},
    }
    for label, fields in cases.items():
        for version in (2, 4, 5, 7, 9):
            # A group each: who joins one that waits for others waits too.
            group = f"joins-{label}-{version}"
            peer.await_coordinator(group)
            given = {**JOIN, "group_id": group, **fields}
            if version < 5:
                if "group_instance_id" in fields:
                    continue
                del given["group_instance_id"]
            yield f"{label} {version}", peer.call("join_group", version, **given)


@compared
def test_a_member_gets_its_id_first(peer: Peer) -> Observations:
    peer.await_coordinator("first-id")
    for version in range(2, 10):
        group = f"first-id-{version}"
        given = {**JOIN, "group_id": group}
        if version < 5:
            del given["group_instance_id"]
        first = peer.call("join_group", version, **given)
        yield f"first {version}", {**first, "members": len(first["members"])}
        if first["error_code"] == "member_id_required":
            second = peer.call("join_group", version, **{**given, "member_id": first["member_id"]})
            yield f"second {version}", {**second, "members": len(second["members"])}


@compared
def test_members_must_share_a_protocol(peer: Peer) -> Observations:
    stable(peer, "protocols")
    other = [{"name": "other", "metadata": b""}]
    yield "other protocol", join(peer, "protocols", protocols=other)
    yield "other type", join(peer, "protocols", protocol_type="connect")
    yield "both", join(peer, "protocols", protocol_type="connect", protocols=other)
    yield "described", described(peer, "protocols")


@compared
def test_the_wrong_member_or_generation(peer: Peer) -> Observations:
    member = stable(peer, "wrong")
    yield "heartbeat", heartbeat(peer, "wrong", member)
    for label, group, who, generation in (
        ("unknown group", "wrong-nowhere", member, 1),
        ("empty group", "", member, 1),
        ("unknown member", "wrong", "nobody", 1),
        ("empty member", "wrong", "", 1),
        ("old generation", "wrong", member, 0),
        ("new generation", "wrong", member, 2),
        ("negative generation", "wrong", member, -1),
    ):
        yield f"heartbeat, {label}", heartbeat(peer, group, who, generation)
        yield f"sync, {label}", sync(peer, group, who, generation)
        yield f"commit, {label}", commit(peer, group, "t", member=who, generation=generation)
    yield "sync, protocol type", sync(peer, "wrong", member, protocol_type="connect")
    yield "sync, protocol name", sync(peer, "wrong", member, protocol_name="other")
    yield "sync again", sync(peer, "wrong", member)
    yield "heartbeat, instance", heartbeat(peer, "wrong", member, group_instance_id="someone")
    for version in (0, 3):
        fields = {"group_instance_id": None} if version >= 3 else {}
        yield (
            f"old heartbeat {version}",
            peer.call(
                "heartbeat",
                version,
                group_id="wrong",
                generation_id=7,
                member_id=member,
                **fields,
            ),
        )


@compared
def test_static_members(peer: Peer) -> Observations:
    first = join(peer, "static", group_instance_id="one")
    yield "first", {**first, "members": len(first["members"])}
    member = first["member_id"]
    yield "sync", sync(peer, "static", member, group_instance_id="one")
    yield "heartbeat", heartbeat(peer, "static", member, group_instance_id="one")
    yield "wrong member", heartbeat(peer, "static", "other", group_instance_id="one")
    yield "unknown instance", heartbeat(peer, "static", member, group_instance_id="two")
    yield (
        "join with a wrong member id",
        join(peer, "static", group_instance_id="one", member_id="other"),
    )
    again = join(peer, "static", group_instance_id="one")
    yield "again", {**again, "members": len(again["members"])}
    yield "same id", again["member_id"] == member
    yield "fenced", heartbeat(peer, "static", member, group_instance_id="one")
    yield (
        "fenced commit",
        commit(peer, "static", "t", member=member, generation=1, group_instance_id="one"),
    )
    yield "described", described(peer, "static")


@compared
def test_a_full_group(peer: Peer) -> Observations:
    for index in range(3):
        answer = peer.call("join_group", 7, **{**JOIN, "group_id": "full"})
        yield str(index), answer["error_code"]
        peer.close()
    yield "over", peer.call("join_group", 7, **{**JOIN, "group_id": "full"})["error_code"]


def described(peer: Peer, *groups: str, version: int = 5, **fields: Any) -> Any:
    """Return DescribeGroups' answer."""
    answer = peer.call("describe_groups", version, groups=list(groups), **fields)
    for group in answer["groups"]:
        for member in group["members"]:
            assert member["client_host"].strip("/").startswith("127.0.0.1")
    return answer


@compared
def test_groups_are_described_and_listed(peer: Peer) -> Observations:
    member = stable(peer, "seen")
    peer.create_topic("for-seen")
    yield "commit without a member", commit(peer, "only-offsets", "for-seen")
    for version in range(7):
        yield (
            f"described {version}",
            described(peer, "seen", "only-offsets", "seen-nowhere", "", version=version),
        )
    yield "operations", described(peer, "seen", "seen-nowhere", include_authorized_operations=True)
    yield "none", described(peer)
    yield "twice", described(peer, "seen", "seen")
    for version in range(6):
        listed = peer.call("list_groups", version)
        listed["groups"] = [
            g for g in listed["groups"] if g["group_id"] in {"seen", "only-offsets"}
        ]
        yield f"listed {version}", listed
    for states in (["Stable"], ["Empty"], ["stable"], ["Nonsense"], []):
        listed = peer.call("list_groups", 4, states_filter=states)
        listed["groups"] = [
            g for g in listed["groups"] if g["group_id"] in {"seen", "only-offsets"}
        ]
        yield f"states {states}", listed
    for types in (["classic"], ["Consumer"], ["nonsense"]):
        listed = peer.call("list_groups", 5, states_filter=[], types_filter=types)
        listed["groups"] = [
            g for g in listed["groups"] if g["group_id"] in {"seen", "only-offsets"}
        ]
        yield f"types {types}", listed
    yield "delete while there are members", peer.call("delete_groups", 2, groups_names=["seen"])
    yield (
        "leave",
        peer.call(
            "leave_group",
            5,
            group_id="seen",
            members=[{"member_id": member, "group_instance_id": None, "reason": None}],
        ),
    )
    yield "empty now", described(peer, "seen")


@compared
def test_leaving(peer: Peer) -> Observations:
    member = stable(peer, "leaving")

    def leave(group: str, *members: tuple[str, str | None], version: int = 5) -> Any:
        gone = [{"member_id": who, "group_instance_id": instance} for who, instance in members]
        if version >= 5:
            gone = [{**one, "reason": "because"} for one in gone]
        return peer.call("leave_group", version, group_id=group, members=gone)

    yield "unknown group", leave("leaving-nowhere", (member, None))
    yield "empty group", leave("", (member, None))
    yield "unknown member", leave("leaving", ("nobody", None))
    yield "empty member", leave("leaving", ("", None))
    yield "unknown instance", leave("leaving", ("", "nobody"))
    yield "unknown instance of a member", leave("leaving", (member, "nobody"))
    yield "no one", leave("leaving")
    for version in (0, 1, 2):
        yield (
            f"unknown {version}",
            peer.call("leave_group", version, group_id="leaving", member_id="nobody"),
        )
    yield "one there, one not", leave("leaving", (member, None), ("nobody", None))
    yield "again", leave("leaving", (member, None))
    yield "heartbeat after", heartbeat(peer, "leaving", member)
    yield "described", described(peer, "leaving")


@compared
def test_commits(peer: Peer) -> Observations:
    peer.create_topic("commits", partitions=2)
    for version in range(2, 10):
        yield f"version {version}", commit(peer, f"commits-{version}", "commits", version=version)
    cases: dict[str, dict[str, Any]] = {
        "unknown topic": {"topic": "commits-nowhere"},
        "unknown partition": {"partition": 9},
        "negative partition": {"partition": -1},
        "empty topic": {"topic": ""},
        "negative offset": {"offset": -1},
        "very negative offset": {"offset": -5},
        "huge offset": {"offset": 2**62},
        "no metadata": {"metadata": None},
        "metadata as long as allowed": {"metadata": "x" * 4096},
        "metadata too long": {"metadata": "x" * 4097},
        "empty group": {"group": ""},
        "unknown member": {"member": "nobody"},
        "generation without member": {"generation": 1},
        "member without generation": {"member": "nobody", "generation": -1},
        "unknown member of a generation": {"member": "nobody", "generation": 3},
    }
    for label, fields in cases.items():
        given = {"group": "commits-cases", "topic": "commits", **fields}
        yield label, commit(peer, **given)
    yield (
        "nothing",
        peer.call(
            "offset_commit",
            8,
            group_id="commits-cases",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[],
        ),
    )
    member = stable(peer, "commits-stable")
    yield "member", commit(peer, "commits-stable", "commits", member=member, generation=1)
    yield "from outside", commit(peer, "commits-stable", "commits")
    yield "stale", commit(peer, "commits-stable", "commits", member=member, generation=0)
    yield "fetched", fetched(peer, "commits-cases")


def fetched(peer: Peer, group: str, topics: Any = None, version: int = 7, **fields: Any) -> Any:
    """Return OffsetFetch's answer, for all topics by default."""
    return peer.call("offset_fetch", version, group_id=group, topics=topics, **fields)


@compared
def test_offsets_that_were_committed_and_that_were_not(peer: Peer) -> Observations:
    peer.create_topic("fetched", partitions=3)
    commit(peer, "fetched", "fetched", offset=7)
    peer.await_coordinator("fetched")
    some = [{"name": "fetched", "partition_indexes": [0, 1, 9, -1]}]
    unknown = [{"name": "fetched-nowhere", "partition_indexes": [0]}]
    for version in range(1, 8):
        yield f"some {version}", fetched(peer, "fetched", some, version)
        yield f"unknown topic {version}", fetched(peer, "fetched", unknown, version)
        yield f"unknown group {version}", fetched(peer, "fetched-nowhere", some, version)
        yield f"empty group {version}", fetched(peer, "", some, version)
        yield f"no topics {version}", fetched(peer, "fetched", [], version)
        if version >= 2:
            yield f"all {version}", fetched(peer, "fetched", None, version)
            yield f"all of unknown {version}", fetched(peer, "fetched-nowhere", None, version)
    yield "stable", fetched(peer, "fetched", some, require_stable=True)
    yield "twice", fetched(peer, "fetched", some + some)
    yield (
        "partition twice",
        fetched(peer, "fetched", [{"name": "fetched", "partition_indexes": [0, 0]}]),
    )
    member = stable(peer, "fetched-group")
    peer.await_coordinator("fetched-nowhere")
    for version in (8, 9):
        for label, group in (
            ("one", {"group_id": "fetched", "topics": some}),
            ("all", {"group_id": "fetched", "topics": None}),
            ("unknown", {"group_id": "fetched-nowhere", "topics": some}),
            ("empty", {"group_id": "", "topics": None}),
        ):
            yield f"{label} {version}", peer.call("offset_fetch", version, groups=[group])
        yield (
            f"two {version}",
            peer.call(
                "offset_fetch",
                version,
                groups=[
                    {"group_id": "fetched", "topics": some},
                    {"group_id": "fetched-nowhere", "topics": None},
                ],
            ),
        )
        yield f"none {version}", peer.call("offset_fetch", version, groups=[])
    for label, group, who, epoch in (
        ("member", "fetched-group", member, 1),
        ("stale", "fetched-group", member, 0),
        ("unknown member", "fetched-group", "nobody", 1),
        ("no member", "fetched-group", None, -1),
        ("epoch only", "fetched-group", None, 4),
        ("member of an unknown group", "fetched-nowhere", "nobody", 1),
    ):
        yield (
            label,
            peer.call(
                "offset_fetch",
                9,
                groups=[
                    {"group_id": group, "member_id": who, "member_epoch": epoch, "topics": some}
                ],
            ),
        )


@compared
def test_deleting_groups(peer: Peer) -> Observations:
    peer.create_topic("deleting")
    stable(peer, "deleting-busy")
    for version in range(3):
        group = f"deleting-{version}"
        commit(peer, group, "deleting")
        yield (
            f"names {version}",
            peer.call(
                "delete_groups", version, groups_names=[group, "deleting-busy", "deleting-no", ""]
            ),
        )
        yield f"again {version}", peer.call("delete_groups", version, groups_names=[group])
        yield f"offsets {version}", fetched(peer, group)
    yield "nothing", peer.call("delete_groups", 2, groups_names=[])
    commit(peer, "deleting-twice", "deleting")
    yield (
        "twice",
        peer.call("delete_groups", 2, groups_names=["deleting-twice", "deleting-twice"])["results"][
            0
        ]["error_code"],
    )


@compared
def test_deleting_offsets(peer: Peer) -> Observations:
    peer.create_topic("unwanted", partitions=2)
    commit(peer, "unwanted", "unwanted")
    topics = [{"name": "unwanted", "partitions": [{"partition_index": 0}]}]
    for label, group, given in (
        ("unknown group", "unwanted-nowhere", topics),
        ("empty group", "", topics),
        ("unknown topic", "unwanted", [{"name": "x", "partitions": [{"partition_index": 0}]}]),
        (
            "unknown partition",
            "unwanted",
            [{"name": "unwanted", "partitions": [{"partition_index": 9}]}],
        ),
        (
            "not committed",
            "unwanted",
            [{"name": "unwanted", "partitions": [{"partition_index": 1}]}],
        ),
        ("no topics", "unwanted", []),
        ("there", "unwanted", topics),
        ("again", "unwanted", topics),
    ):
        yield label, peer.call("offset_delete", 0, group_id=group, topics=given)
    stable(peer, "unwanted-busy")
    commit(peer, "unwanted-busy", "unwanted")
    yield (
        "of a group with members",
        peer.call("offset_delete", 0, group_id="unwanted-busy", topics=topics),
    )


@compared
def test_producer_ids(peer: Peer) -> Observations:
    peer.init_producer_id()
    for version in range(6):
        fields: dict[str, Any] = {"transaction_timeout": 60_000}
        yield (
            f"new {version}",
            peer.call("init_producer_id", version, transactional_id=None, **fields),
        )
        yield (
            f"empty transactional id {version}",
            peer.call("init_producer_id", version, transactional_id="", **fields),
        )
    ids = [peer.init_producer_id()["producer_id"] for _ in range(5)]
    yield "are different", len(set(ids))
    for pid, epoch in ((5, 0), (5, -1), (-1, 5), (ids[0], 0)):
        label = f"again {'own' if pid == ids[0] else pid} {epoch}"
        yield (
            label,
            peer.call(
                "init_producer_id",
                4,
                transactional_id=None,
                transaction_timeout=1000,
                producer_id=pid,
                producer_epoch=epoch,
            ),
        )
    for timeout in (0, -1):
        yield (
            f"timeout {timeout}",
            peer.call("init_producer_id", 4, transactional_id=None, transaction_timeout=timeout),
        )
