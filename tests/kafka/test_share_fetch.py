"""ShareFetch and ShareAcknowledge of KIP-932: which records members get and may acknowledge."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from tests.kafka.batches import good_batch
from tests.kafka.compare import compared
from tests.kafka.test_configs import SET, group_resource
from tests.kafka.test_share_groups import settled
from tests.kafka.test_transactions import add, end, producer, write
from tests.kafka.test_transactions import settled as transaction_settled
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
Said = tuple[int, int, list[int]]  # first offset, last offset, types

ONE, OTHER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
GAP, ACCEPT, RELEASE, REJECT = range(4)
# A broker may still be busy with the share partition after the last fetch.
WAIT_MS = 100


class Member:
    """A member of a share group, and its session with the broker."""

    def __init__(self, peer: Peer, group: str, topic: str, member_id: str = ONE) -> None:
        self.peer, self.group, self.topic, self.member_id = peer, group, topic, member_id
        self.epoch = 0

    def fetch(
        self,
        *said: Said,
        partitions: tuple[int, ...] = (0,),
        epoch: int | None = None,
        forgotten: tuple[int, ...] = (),
        **fields: Any,
    ) -> Any:
        """Fetch; return the answer with the size of the records instead of the records."""
        sent = self.epoch if epoch is None else epoch
        topic_id = self.peer.topic_ids.get(self.topic, uuid.UUID(int=77))
        named = partitions if sent == 0 or said else ()
        answer = self.peer.call(
            "share_fetch",
            1,
            **{
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": sent,
                "max_wait": WAIT_MS,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 500,
                "batch_size": 500,
                "topics": _topics(topic_id, named, said),
                "forgotten_topics_data": [{"topic_id": topic_id, "partitions": list(forgotten)}]
                if forgotten
                else [],
                **fields,
            },
        )
        return self._seen(sent, answer)

    def until_acquired(self, **fields: Any) -> Any:
        """Fetch until something is acquired: a broker may have to load a share partition first."""
        return self.peer.until(lambda: self.fetch(max_wait=200, **fields), has_acquired)

    def acknowledge(self, *said: Said, epoch: int | None = None, partition: int = 0) -> Any:
        """Acknowledge; return the answer."""
        sent = self.epoch if epoch is None else epoch
        topic_id = self.peer.topic_ids.get(self.topic, uuid.UUID(int=77))
        answer = self.peer.call(
            "share_acknowledge",
            1,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=sent,
            topics=_topics(topic_id, (partition,), said) if said else [],
        )
        return self._seen(sent, answer)

    def _seen(self, sent: int, answer: Any) -> Any:
        if isinstance(answer, str):
            return answer
        if answer["error_code"] == "none":
            self.epoch = 0 if sent == -1 else sent + 1
        for topic in answer["responses"]:
            for partition in topic["partitions"]:
                # Only this error makes the fields about the leader meaningful.
                leader = partition.pop("current_leader")
                if partition["error_code"] == "not_leader_or_follower":
                    partition["leader"] = leader
                partition.pop("acknowledge_error_message", None)  # Kafka has none in a fetch
                if "records" in partition:
                    partition["records_size"] = len(partition.pop("records") or b"")
        return answer


def _topics(
    topic_id: uuid.UUID, partitions: tuple[int, ...], said: tuple[Said, ...]
) -> list[dict[str, Any]]:
    if not partitions:
        return []
    batches = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
        for first, last, types in said
    ]
    rows = [
        {"partition_index": p, "acknowledgement_batches": batches if p == partitions[0] else []}
        for p in partitions
    ]
    return [{"topic_id": topic_id, "partitions": rows}]


def has_acquired(answer: Any) -> bool:
    return any(p["acquired_records"] for t in answer["responses"] for p in t["partitions"])


def begin(peer: Peer, name: str, *sizes: int, partitions: int = 1, **settings: str) -> Member:
    """Return the first member of a group that reads a new topic from its start."""
    peer.create_topic(name, partitions=partitions)
    changes = [("share.auto.offset.reset", SET, "earliest")]
    changes += [(f"share.{key.replace('_', '.')}", SET, value) for key, value in settings.items()]
    peer.call("incremental_alter_configs", 1, resources=[group_resource(name, *changes)])
    settled(peer, name, ONE, name)
    for size in sizes:
        produced = peer.produce(name, good_batch(*(b"value" for _ in range(size))))
        assert produced["error_code"] == "none", produced
    return Member(peer, name, name)


@compared
def test_records_are_acquired_and_acknowledged(peer: Peer) -> Observations:
    member = begin(peer, "acknowledged", 3, 3)
    yield "acquired", member.until_acquired()
    yield "nothing more", member.fetch()
    yield "accepted", member.acknowledge((0, 1, [ACCEPT]))
    yield "each in its way", member.acknowledge((2, 5, [ACCEPT, RELEASE, REJECT, GAP]))
    yield "again", member.fetch()
    yield "with a fetch", member.fetch((3, 3, [ACCEPT]))
    yield "once more", member.fetch()
    yield "closed", member.acknowledge(epoch=-1)
    yield "gone", member.fetch()


@compared
def test_acknowledgements_that_make_no_sense_are_refused(peer: Peer) -> Observations:
    member = begin(peer, "share-refused", 5)
    member.until_acquired()
    for label, said in (
        ("never acquired", [(5, 5, [ACCEPT])]),
        ("partly acquired", [(3, 6, [ACCEPT])]),
        ("backwards", [(3, 2, [ACCEPT])]),
        ("no types", [(0, 1, [])]),
        ("two types for three", [(0, 2, [ACCEPT, ACCEPT])]),
        ("renewal, which this version has not", [(0, 1, [4])]),
        ("type 9", [(0, 1, [9])]),
        ("type -1", [(0, 1, [-1])]),
        ("twice", [(0, 1, [ACCEPT]), (1, 2, [ACCEPT])]),
        ("out of order", [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])]),
    ):
        yield label, member.acknowledge(*said)
        yield f"{label}, fetching", member.fetch(*said)
    yield "still acquired", member.acknowledge((0, 4, [ACCEPT]))
    yield "too late", member.acknowledge((0, 4, [RELEASE]))
    yield "other partition", member.acknowledge((0, 0, [ACCEPT]), partition=1)


@compared
def test_one_members_records_are_not_anothers(peer: Peer) -> Observations:
    one = begin(peer, "others", 3, 3)
    other = Member(peer, "others", "others", OTHER)
    yield "first", one.until_acquired(max_records=1)
    yield "second", other.fetch()
    yield "not its own", other.acknowledge((0, 0, [ACCEPT]))
    yield "released", one.acknowledge((0, 2, [RELEASE]))
    yield "second again", other.fetch()
    yield "closed", other.fetch(epoch=-1)
    # Kafka answers before it has released them.
    yield "given back", one.until_acquired()


@compared
def test_share_sessions_follow_their_epochs(peer: Peer) -> Observations:
    member = begin(peer, "share-sessions", 1, partitions=2)
    yield "unknown", member.fetch(epoch=3)
    yield "unknown, acknowledging", member.acknowledge((0, 0, [ACCEPT]), epoch=3)
    yield "unknown, closing", member.fetch(epoch=-1)
    yield "unknown, closing by acknowledging", member.acknowledge(epoch=-1)
    yield "acknowledging at once", member.fetch((0, 0, [ACCEPT]), epoch=0)
    member.epoch = 0
    yield "opened", member.until_acquired(partitions=(0, 1))["error_code"]
    yield "too new", member.fetch(epoch=member.epoch + 1)
    yield "too old", member.fetch(epoch=member.epoch - 1)
    yield "acknowledging as the first", member.acknowledge((0, 0, [ACCEPT]), epoch=0)
    yield "next", member.fetch()
    yield "acknowledging as the next", member.acknowledge((0, 0, [RELEASE]))
    yield "forgotten", member.fetch(forgotten=(0,))
    yield "in it no more", member.fetch()
    yield "and back", member.fetch(epoch=0)


@compared
def test_limits_end_at_batches(peer: Peer) -> Observations:
    member = begin(peer, "share-limits", 4, 4, 4, 4)
    yield "first", member.until_acquired(max_records=1)
    yield "two", member.fetch(max_records=5, batch_size=2)
    yield "rest", member.fetch(max_bytes=1)
    yield "none", member.fetch()
    member.acknowledge((0, 15, [RELEASE]))
    yield "again", member.fetch(max_records=1)


@compared
def test_partitions_that_are_not_there(peer: Peer) -> Observations:
    member = begin(peer, "share-not-there", 1)
    member.until_acquired()
    yield (
        "partition",
        Member(peer, "share-not-there", "share-not-there", OTHER).fetch(partitions=(7,)),
    )
    yield (
        "acknowledged topic",
        Member(peer, "share-not-there", "nowhere").acknowledge(
            (0, 0, [ACCEPT]), epoch=member.epoch
        ),
    )


@compared
def test_deleted_records_are_passed_over(peer: Peer) -> Observations:
    member = begin(peer, "share-deleted", 4, 4, 4)
    yield "first", member.until_acquired(max_records=1)
    peer.call(
        "delete_records",
        2,
        topics=[{"name": "share-deleted", "partitions": [{"partition_index": 0, "offset": 8}]}],
        timeout=5000,
    )
    yield "second", member.until_acquired()
    yield "too late", member.acknowledge((0, 3, [RELEASE]))
    yield "still there", member.acknowledge((8, 11, [RELEASE]))
    yield "again", member.fetch()


@compared
def test_a_record_is_delivered_five_times(peer: Peer) -> Observations:
    member = begin(peer, "five-times", 1)
    for number in range(5):
        yield f"delivery {number}", member.until_acquired()
        yield f"release {number}", member.acknowledge((0, 0, [RELEASE]))
    yield "over", member.fetch()
    peer.produce("five-times", good_batch(b"next"))
    yield "next", member.fetch()


@compared
def test_closing_a_session_is_no_delivery(peer: Peer) -> Observations:
    member = begin(peer, "closing", 1)
    for number in range(7):
        yield f"delivery {number}", member.until_acquired()
        yield f"closing {number}", member.acknowledge(epoch=-1)


@compared
def test_aborted_records_are_delivered_by_isolation(peer: Peer) -> Observations:
    for level in ("read_committed", "read_uncommitted"):
        name = f"share-{level}"
        member = begin(peer, name, isolation_level=level)
        who = producer(peer, name)
        peer.produce(name, good_batch(b"plain"))
        yield f"{level}: first", member.until_acquired()
        add(peer, name, who, (name, 0))
        write(peer, name, who, name, 0)
        yield f"{level}: open", member.fetch()
        end(peer, name, who, commits=False)
        transaction_settled(peer, name)
        yield f"{level}: aborted", member.fetch(max_wait=1000)
        yield f"{level}: after", member.fetch()
