"""Stock share consumers (KIP-932) against real nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.clients import test_clients
from tests.clients.conftest import CONFIG
from tests.contracts.client import new_group
from tests.support.drivers.process import Driver, Member, wait_until
from tests.support.replicated_cluster import replicated_cluster

CONFLUENT, JAVA = test_clients.TestConfluentKafka.driver, test_clients.TestJavaClient.driver
NewTopic = Callable[..., str]


CLIENTS = [pytest.param(CONFLUENT, id="confluent"), pytest.param(JAVA, id="java")]


@pytest.fixture(
    params=[CLIENTS[0], pytest.param(JAVA, id="java", marks=pytest.mark.slow)],
)
def driver(request: pytest.FixtureRequest) -> Driver:
    return installed(request.param)


def installed(client: Driver) -> Driver:
    if not client.command:
        pytest.skip(f"{client.name} is not installed: run `make tools`")
    return client


def new_share_group(bootstrap: str, **settings: str) -> str:
    """Return a group that begins at the start of its topics."""
    group = new_group()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = [
        ConfigEntry(
            f"share.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET
        )
        for name, value in {"auto_offset_reset": "earliest", **settings}.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)
    return group


def produce(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "batch.size": 2000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def deliveries(members: Sequence[Member]) -> Counter[bytes]:
    """Return how often each value was delivered to any of the members."""
    return Counter(delivery.value for member in members for delivery in member.deliveries)


def test_members_share_the_records_of_one_partition(
    driver: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=1), new_share_group(bootstrap)
    with (
        driver.share_member(bootstrap, topic, group) as one,
        driver.share_member(bootstrap, topic, group) as other,
    ):
        members = [one, other]
        sent: list[bytes] = []
        deadline = time.monotonic() + 60
        while not (one.deliveries and other.deliveries):
            assert time.monotonic() < deadline, "one member gets everything"
            more = [b"accept %d" % (len(sent) + n) for n in range(200)]
            sent += more
            produce(bootstrap, topic, more)
            count = len(sent)
            wait_until(
                members,
                lambda count=count: len(deliveries(members)) == count,  # type: ignore[misc]
                what="delivery",
            )
        one.close()
        other.close()
        assert deliveries(members) == Counter(sent)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_record_is_done_with_as_its_member_says(
    client: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    driver = installed(client)
    topic, group = new_topic(partitions=2), new_share_group(bootstrap)
    kinds = (b"accept", b"release", b"reject")
    values = [b"%s %d" % (kind, n) for n in range(30) for kind in kinds]
    produce(bootstrap, topic, values)
    with driver.share_member(bootstrap, topic, group) as member:
        released = {value for value in values if value.startswith(b"release")}
        wait_until(
            [member],
            lambda: sum(deliveries([member]).values()) == len(values) + len(released),
            what="every delivery",
        )
        member.close()
    assert {v for v, count in deliveries([member]).items() if count == 2} == released
    assert all(d.delivery_count == 2 for d in member.deliveries[len(values) :])
    # The next member has nothing left of them.
    with driver.share_member(bootstrap, topic, group) as later:
        produce(bootstrap, topic, [b"accept last"])
        wait_until([later], lambda: bool(later.deliveries), what="the last record")
        later.close()
    assert [d.value for d in later.deliveries] == [b"accept last"]


@pytest.mark.slow
def test_records_are_accepted_by_the_next_poll_of_a_member_that_says_nothing(
    driver: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=3), new_share_group(bootstrap)
    values = [b"%d" % n for n in range(500)]
    produce(bootstrap, topic, values)
    with driver.share_member(bootstrap, topic, group, mode="implicit") as member:
        wait_until([member], lambda: len(member.deliveries) == len(values), what="all")
        member.close()
    assert deliveries([member]) == Counter(values)


def test_what_a_killed_member_held_is_delivered_to_another(
    driver: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=1), new_share_group(bootstrap)
    with driver.share_member(bootstrap, topic, group) as killed:
        produce(bootstrap, topic, [b"hold"])
        wait_until([killed], lambda: bool(killed.deliveries), what="the record")
        killed.kill()
    with driver.share_member(bootstrap, topic, group) as next_member:
        # Long before its lock runs out: the connection is gone.
        wait_until([next_member], lambda: bool(next_member.deliveries), what="delivery again")
        next_member.kill()


@pytest.mark.slow
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_decides_whether_aborted_records_are_seen(
    driver: Driver, bootstrap: str, new_topic: NewTopic, level: str
) -> None:
    topic = new_topic(partitions=1)
    group = new_share_group(bootstrap, isolation_level=level)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        kind = b"aborted" if number % 2 else b"committed"
        producer.produce(topic, b"%s %d" % (kind, number))
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    produce(bootstrap, topic, [b"last"])
    with driver.share_member(bootstrap, topic, group) as member:
        wait_until([member], lambda: b"last" in deliveries([member]), what="the last record")
        member.close()
    seen = [d.value for d in member.deliveries]
    assert [v for v in seen if v.startswith(b"committed")] == [
        b"committed %d" % n for n in (0, 2, 4)
    ]
    aborted = [v for v in seen if v.startswith(b"aborted")]
    assert aborted == ([] if level == "read_committed" else [b"aborted %d" % n for n in (1, 3, 5)])


@pytest.mark.slow
def test_accepted_records_do_not_come_back_when_leaders_are_killed(
    driver: Driver, tmp_path: Path
) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        cluster.create("t", partitions=3)
        group = new_share_group(cluster.addresses)
        with (
            driver.share_member(cluster.addresses, "t", group) as one,
            driver.share_member(cluster.addresses, "t", group) as other,
        ):
            members = [one, other]
            before = [b"accept before %d" % n for n in range(300)]
            produce(cluster.addresses, "t", before)
            wait_until(members, lambda: len(deliveries(members)) == len(before), what="before")
            time.sleep(1)  # for the last of them to be acknowledged
            cluster.node_leading("t").kill()
            after = [b"accept after %d" % n for n in range(300)]
            produce(cluster.addresses, "t", after)
            wait_until(
                members, lambda: deliveries(members).keys() == {*before, *after}, what="after"
            )
            found = deliveries(members)
            assert all(found[value] == 1 for value in before)
