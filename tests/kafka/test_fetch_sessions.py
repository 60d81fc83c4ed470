"""Incremental fetch sessions: how they are opened, what they answer, how they end (KIP-227)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.kafka.batches import good_batch
from tests.kafka.compare import LONG_WAIT_MS, SHORT_WAIT_MS, compared, timed
from tests.support.peer import NO_TOPIC, Peer

Observations = Iterator[tuple[str, Any]]
Place = tuple[str | uuid.UUID, int, int]  # topic, partition, fetch offset


class Session:
    """One client's session, with its id and its next epoch."""

    def __init__(self, peer: Peer, version: int = 12) -> None:
        self.peer = peer
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self,
        *places: Place,
        forget: tuple[tuple[str, int], ...] = (),
        partition_max_bytes: int = 1_048_576,
        **fields: object,
    ) -> Any:
        """Send the next request; return the answer."""
        answer = self.send(
            *places,
            forget=forget,
            partition_max_bytes=partition_max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            **fields,
        )
        self.session_id = answer["session_id"]
        self.epoch += 1
        return answer

    def send(
        self,
        *places: Place,
        forget: tuple[tuple[str, int], ...] = (),
        partition_max_bytes: int = 1_048_576,
        **fields: object,
    ) -> Any:
        """Send a request with exactly these fields; the session's epoch does not advance."""
        topics: list[dict[str, Any]] = []
        for topic, index, offset in places:
            wanted: dict[str, object] = {
                "partition": index,
                "fetch_offset": offset,
                "partition_max_bytes": partition_max_bytes,
                "log_start_offset": -1,
            }
            if self.version >= 9:
                wanted["current_leader_epoch"] = -1
            if self.version >= 12:
                wanted["last_fetched_epoch"] = -1
            named = self._named(topic)
            if topics and topics[-1].items() >= named.items():
                topics[-1]["partitions"].append(wanted)
            else:
                topics.append({**named, "partitions": [wanted]})
        given: dict[str, object] = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 2**31 - 1,
            "forgotten_topics_data": [
                {**self._named(topic), "partitions": [index]} for topic, index in forget
            ],
            **fields,
        }
        if self.version < 15:
            given["replica_id"] = -1
        return self.peer.call("fetch", self.version, topics=topics, **given)

    def _named(self, topic: str | uuid.UUID) -> dict[str, object]:
        if self.version < 13:
            return {"topic": topic}
        if isinstance(topic, uuid.UUID):
            return {"topic_id": topic}
        return {"topic_id": self.peer.topic_ids.get(topic, NO_TOPIC)}


def fill(peer: Peer, topic: str, count: int, *, partition: int = 0) -> None:
    """Append so many batches of one record."""
    for _ in range(count):
        assert peer.produce(topic, good_batch(b"x"), partition=partition)["error_code"] == "none"


@compared
def test_every_version_has_sessions(peer: Peer) -> Observations:
    peer.create_topic("versions", partitions=2)
    fill(peer, "versions", 1)
    for version in range(7, 18):
        session = Session(peer, version)
        yield f"opened {version}", session.fetch(("versions", 0, 0), ("versions", 1, 0))
        opened = session.session_id
        yield f"moved on {version}", session.fetch(("versions", 0, 1))
        yield f"nothing new {version}", session.fetch()
        fill(peer, "versions", 1, partition=1)
        yield f"one has news {version}", session.fetch()
        yield f"not taken {version}", session.fetch()
        yield f"forgotten {version}", session.fetch(forget=(("versions", 1),))
        yield f"same session {version}", session.session_id == opened
        yield f"closed {version}", session.send(session_id=opened, session_epoch=-1)
        yield f"gone {version}", session.fetch()
        peer.call(
            "delete_records",
            2,
            topics=[{"name": "versions", "partitions": [{"partition_index": 1, "offset": -1}]}],
            timeout=5000,
        )


@compared
def test_session_errors(peer: Peer) -> Observations:
    peer.create_topic("errors")
    by_name, by_id = Session(peer, 12), Session(peer, 13)
    by_name.fetch(("errors", 0, 0))
    by_id.fetch(("errors", 0, 0))
    for epoch in (2, 7, 2**31 - 1, -2):
        yield (
            f"epoch {epoch}",
            by_name.send(session_id=by_name.session_id, session_epoch=epoch),
        )
    yield "ids in a session of names", by_id.send(session_id=by_name.session_id, session_epoch=1)
    yield "names in a session of ids", by_name.send(session_id=by_id.session_id, session_epoch=1)
    yield "still there", by_name.fetch()
    yield "the last epoch again", by_name.send(session_id=by_name.session_id, session_epoch=1)
    yield "and on", by_name.fetch()
    for session_id in (0, 1):
        yield f"no session {session_id}", by_name.send(session_id=session_id, session_epoch=1)


@compared
def test_a_full_request_ends_the_session_that_it_names(peer: Peer) -> Observations:
    peer.create_topic("renewed-list")
    first, second = Session(peer), Session(peer)
    first.fetch(("renewed-list", 0, 0))
    second.session_id = first.session_id
    yield "another", second.fetch(("renewed-list", 0, 0))
    yield "is another", first.session_id != second.session_id
    yield "the first is gone", first.fetch()
    yield "the second is not", second.fetch()
    yield (
        "closed by a request without a session",
        second.send(("renewed-list", 0, 0), session_id=second.session_id, session_epoch=-1),
    )
    yield "so it is gone", second.fetch()


@compared
def test_partitions_come_and_go(peer: Peer) -> Observations:
    peer.create_topic("coming", partitions=4)
    fill(peer, "coming", 2)
    session = Session(peer)
    yield "one", session.fetch(("coming", 0, 2))
    yield "another", session.fetch(("coming", 1, 0))
    yield "named again", session.fetch(("coming", 1, 0))
    yield "read again from the start", session.fetch(("coming", 0, 0))
    yield "forgotten", session.fetch(forget=(("coming", 0),))
    yield "forgotten twice", session.fetch(forget=(("coming", 0),))
    yield "of no topic", session.fetch(forget=(("nowhere", 3),))
    yield "back", session.fetch(("coming", 0, 2))
    yield "named and forgotten", session.fetch(("coming", 2, 0), forget=(("coming", 2),))
    yield "nothing", session.fetch()
    yield (
        "all forgotten",
        session.fetch(forget=(("coming", 0), ("coming", 1), ("coming", 2))),
    )
    yield "so it is gone", session.fetch(("coming", 0, 0))


@compared
def test_sessions_of_nothing(peer: Peer) -> Observations:
    peer.create_topic("nothing")
    session = Session(peer)
    yield "opened", session.fetch()
    yield "used", session.fetch()
    session = Session(peer)
    session.fetch()
    yield "grown", session.fetch(("nothing", 0, 0))
    yield "on", session.fetch()


@compared
def test_errors_of_partitions_are_said_until_they_are_over(peer: Peer) -> Observations:
    peer.create_topic("mixed")
    session = Session(peer)
    places: list[Place] = [("mixed", 0, 0), ("mixed", 5, 0), ("not-yet", 0, 0)]
    yield "opened", session.fetch(*places)
    yield "again", session.fetch()
    yield "waits for nothing", session.fetch(max_wait=2000)
    peer.create_topic("not-yet")
    yield "one is there", session.fetch()
    yield "nothing new there", session.fetch()
    yield "outside", session.fetch(("mixed", 0, 99))
    yield "still outside", session.fetch()
    yield "inside", session.fetch(("mixed", 0, 0), forget=(("mixed", 5),))
    yield "quiet", session.fetch()


@compared
def test_unknown_ids_in_a_session(peer: Peer) -> Observations:
    peer.create_topic("known-id")
    session = Session(peer, 16)
    places: list[Place] = [("known-id", 0, 0), (uuid.UUID(int=77), 0, 0)]
    yield "opened", session.fetch(*places)
    yield "again", session.fetch()


@compared
def test_a_deleted_topic_in_a_session(peer: Peer) -> Observations:
    for version in (12, 16):
        topic = f"deleted-{version}"
        peer.create_topic(topic)
        fill(peer, topic, 1)
        session = Session(peer, version)
        yield f"opened {version}", session.fetch((topic, 0, 1))
        peer.call("delete_topics", 5, topic_names=[topic], timeout=5000)
        peer.until(session.fetch, has_unknown_topic)
        yield f"deleted {version}", session.fetch()


def has_unknown_topic(answer: Any) -> bool:
    """Return whether the answer says of a partition that its topic is unknown."""
    return any(
        partition["error_code"].startswith("unknown_topic")
        for topic in answer["responses"]
        for partition in topic["partitions"]
    )


@compared
def test_the_log_start_is_news(peer: Peer) -> Observations:
    peer.create_topic("starts", partitions=2)
    fill(peer, "starts", 3)
    session = Session(peer)
    yield "opened", session.fetch(("starts", 0, 3), ("starts", 1, 0))
    peer.call(
        "delete_records",
        2,
        topics=[{"name": "starts", "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout=5000,
    )
    yield "moved", session.fetch()
    yield "known", session.fetch()
    yield "below", session.fetch(("starts", 0, 1))
    yield "above", session.fetch(("starts", 0, 2))


@compared
def test_who_was_served_comes_last(peer: Peer) -> Observations:
    peer.create_topic("turns", partitions=3)
    for index in range(3):
        fill(peer, "turns", 4, partition=index)
    session = Session(peer)
    places: list[Place] = [("turns", index, 0) for index in range(3)]
    yield "opened", session.fetch(*places, max_bytes=1)
    for count in range(7):
        yield f"turn {count}", session.fetch(max_bytes=1)
    yield "more room", session.fetch(max_bytes=200)


@compared
def test_a_request_of_a_session_waits_for_news(peer: Peer) -> Observations:
    peer.create_topic("long-poll", partitions=2)
    fill(peer, "long-poll", 1)
    session = Session(peer)
    session.fetch(("long-poll", 0, 1), ("long-poll", 1, 0))
    for label, places, wait_ms, fields in (
        ("nothing", (), SHORT_WAIT_MS, {}),
        ("no bytes wanted", (), LONG_WAIT_MS, {"min_bytes": 0}),
        ("records", (("long-poll", 0, 0),), LONG_WAIT_MS, {}),
        ("too few", (), SHORT_WAIT_MS, {"min_bytes": 10_000}),
        ("nothing again", (("long-poll", 0, 1),), SHORT_WAIT_MS, {}),
    ):
        ask = partial(session.fetch, *places, max_wait=wait_ms, **fields)
        yield label, timed(ask, wait_ms)


@compared
def test_isolation_is_of_the_request(peer: Peer) -> Observations:
    peer.create_topic("isolated")
    fill(peer, "isolated", 1)
    session = Session(peer)
    for level in (0, 1, 0):
        yield (
            f"first at {level} {session.epoch}",
            session.fetch(("isolated", 0, 1), isolation_level=level),
        )
    fill(peer, "isolated", 1)
    yield "committed", session.fetch(isolation_level=1)
