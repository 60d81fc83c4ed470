"""What every Kafka client must be able to do against a node."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable

import pytest

from tests.support.drivers.lines import Message
from tests.support.drivers.process import Driver, Member, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NewTopic = Callable[..., str]


class FirstSteps:
    """What the whole contract begins with: for a client that takes long to start.

    Subclasses set ``driver``; the fixtures give a running node and new topics on it.
    """

    driver: Driver

    @pytest.fixture(autouse=True)
    def _must_be_installed(self) -> None:
        if not self.driver.command:
            pytest.skip(f"{self.driver.name} is not installed: run `make tools`")

    def test_nulls_empty_values_and_headers_survive(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        topic = new_topic(partitions=1)
        sent = [
            Message(value=None, key=b"tombstone", partition=0, timestamp_ms=5),
            Message(value=b"no key", key=None, partition=0, timestamp_ms=6),
            Message(value=b"", key=b"", partition=0, timestamp_ms=7),
            Message(
                value=b"\x00\xff" * 10,
                key=b"binary \xfe",
                headers=(("empty", b""), ("binary", b"\x00\x01\xff")),
                partition=0,
                timestamp_ms=8,
            ),
        ]
        self.driver.produce(bootstrap, topic, sent)
        received = self._consume(bootstrap, topic, len(sent))
        assert [message for _, message in received] == sent

    def _member(
        self, bootstrap: str, topic: str, group: str, assignor: str | None = None
    ) -> Member:
        return self.driver.member(bootstrap, topic, group, assignor=assignor)

    def _consume(self, bootstrap: str, topic: str, count: int) -> list[tuple[int, Message]]:
        with self._member(bootstrap, topic, new_group()) as member:
            wait_until([member], lambda: len(member.records) >= count, what=f"{count} records")
            member.close()
        assert len(member.records) == count
        return member.records


class ClientContract(FirstSteps):
    """All of it."""

    def test_records_of_every_codec_come_back_as_they_were_sent(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        topic = new_topic(partitions=2)
        sent: list[Message] = []
        for number, codec in enumerate(CODECS):
            some = [
                Message(
                    value=f"value {i} ".encode() * 50,
                    key=f"key {i % 7}".encode(),
                    headers=(("number", str(i).encode()), ("codec", codec.encode())),
                    partition=i % 2,
                    timestamp_ms=1_700_000_000_000 + i,
                )
                for i in range(300)
            ]
            acks = self.driver.produce(bootstrap, topic, some, codec=codec)
            first = 150 * number
            offsets = range(first, first + 150)
            assert sorted(acks) == [(p, offset) for p in range(2) for offset in offsets], codec
            sent += some
        received = self._consume(bootstrap, topic, len(sent))
        assert by_partition(received) == by_partition(list(enumerate_by_partition(sent)))

    def test_a_ten_megabyte_message_passes_where_the_topic_allows_it(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        topic = new_topic(partitions=1, configs={"max.message.bytes": "12000000"})
        body = random.Random(7).randbytes(10_000_000)
        self.driver.produce(bootstrap, topic, [Message(value=body, partition=0, timestamp_ms=1)])
        [(offset, message)] = self._consume(bootstrap, topic, 1)
        assert offset == 0
        assert message.value == body

    def test_an_idempotent_producer_is_acknowledged_in_order(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        topic = new_topic(partitions=1)
        sent = [Message(value=b"%d" % i, partition=0, timestamp_ms=i) for i in range(2000)]
        acks = self.driver.produce(bootstrap, topic, sent, is_idempotent=True)
        assert acks == [(0, i) for i in range(2000)]
        received = self._consume(bootstrap, topic, len(sent))
        assert [(i, m.value) for i, m in received] == [(i, b"%d" % i) for i in range(2000)]

    def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        for assignor in self.driver.assignors:
            topic, group = new_topic(partitions=6), new_group()
            with self._member(bootstrap, topic, group, assignor) as first:
                wait_until([first], lambda first=first: first.owned == set(range(6)), what=assignor)
                with self._member(bootstrap, topic, group, assignor) as second:
                    both = [first, second]
                    wait_until(both, lambda both=both: share(both, 6), what=f"{assignor}: sharing")
                    second.close()
                wait_until(
                    [first],
                    lambda first=first: first.owned == set(range(6)),
                    what=f"{assignor}: take-over",
                )
                first.close()

    def test_a_killed_members_partitions_move_after_its_session_times_out(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        topic, group = new_topic(partitions=4), new_group()

        def member() -> Member:
            return self.driver.member(bootstrap, topic, group, session_ms=3000)

        with member() as first:
            with member() as second:
                both = [first, second]
                wait_until(both, lambda: share(both, 4), what="sharing")
                killed_at = time.monotonic()
                second.kill()
            wait_until([first], lambda: first.owned == set(range(4)), what="take-over")
            assert time.monotonic() - killed_at > 2, "the session cannot have timed out yet"
            first.close()

    def test_a_static_member_that_comes_back_in_time_causes_no_rebalance(
        self, bootstrap: str, new_topic: NewTopic
    ) -> None:
        if not self.driver.has_static_members:
            pytest.skip(f"{self.driver.name} has no static members")
        topic, group = new_topic(partitions=4), new_group()
        members = [
            self.driver.member(bootstrap, topic, group, instance=name, session_ms=20_000)
            for name in ("a", "b")
        ]
        with members[0] as first, members[1] as second:
            wait_until([first, second], lambda: share([first, second], 4), what="sharing")
            owned, count = second.owned, first.assignment_count
            second.kill()
            with self.driver.member(
                bootstrap, topic, group, instance="b", session_ms=20_000
            ) as again:
                wait_until([first, again], lambda: bool(again.owned), what="the return of b")
                assert again.owned == owned
                assert first.assignment_count == count

    def test_a_group_goes_on_where_it_committed(self, bootstrap: str, new_topic: NewTopic) -> None:
        topic, group = new_topic(partitions=1), new_group()
        sent = [Message(value=b"%d" % i, partition=0, timestamp_ms=i) for i in range(20)]
        self.driver.produce(bootstrap, topic, sent[:10])
        with self._member(bootstrap, topic, group) as first:
            wait_until([first], lambda: len(first.records) == 10, what="reading ten records")
            first.close()
        self.driver.produce(bootstrap, topic, sent[10:])
        with self._member(bootstrap, topic, group) as second:
            wait_until([second], lambda: len(second.records) >= 10, what="reading ten more")
            second.close()
        assert [offset for offset, _ in second.records] == list(range(10, 20))


def new_group() -> str:
    """Return a group id that no other test uses."""
    return f"group-{uuid.uuid4().hex[:12]}"


def share(members: list[Member], partition_count: int) -> bool:
    """Return whether every partition has exactly one owner and every member has some."""
    owned = [member.owned or set() for member in members]
    covered = set().union(*owned)
    return (
        all(owned)
        and covered == set(range(partition_count))
        and sum(map(len, owned)) == partition_count
    )


def by_partition(records: list[tuple[int, Message]]) -> dict[int, list[tuple[int, Message]]]:
    """Return the records of each partition in the order they came."""
    result: dict[int, list[tuple[int, Message]]] = {}
    for offset, message in records:
        result.setdefault(message.partition, []).append((offset, message))
    return result


def enumerate_by_partition(messages: list[Message]) -> list[tuple[int, Message]]:
    """Return each message with the offset it gets in its new partition."""
    next_offset: dict[int, int] = {}
    result = []
    for message in messages:
        offset = next_offset.get(message.partition, 0)
        result.append((offset, message))
        next_offset[message.partition] = offset + 1
    return result
