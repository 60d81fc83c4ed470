"""Stock clients that speak KIP-848's consumer group protocol, alone and with classic ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.clients import test_clients
from tests.clients.conftest import CONFIG
from tests.contracts.client import new_group, share
from tests.support.drivers.process import Driver, wait_until
from tests.support.replicated_cluster import replicated_cluster

UNIFORM = "uniform"  # an assignor that only the server has
CONFLUENT, JAVA = test_clients.TestConfluentKafka.driver, test_clients.TestJavaClient.driver
NewTopic = Callable[..., str]


# The coordinator's own tests are with confluent-kafka.
@pytest.fixture(
    params=[
        pytest.param(CONFLUENT, id="confluent", marks=pytest.mark.slow),
        pytest.param(JAVA, id="java"),
    ]
)
def driver(request: pytest.FixtureRequest) -> Driver:
    client: Driver = request.param
    must_be_installed(client)
    return client


def must_be_installed(driver: Driver) -> None:
    if not driver.command:
        pytest.skip(f"{driver.name} is not installed: run `make tools`")


def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
    driver: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=6), new_group()
    with driver.member(bootstrap, topic, group, assignor=UNIFORM) as first:
        wait_until([first], lambda: first.owned == set(range(6)), what="all")
        with driver.member(bootstrap, topic, group, assignor=UNIFORM) as second:
            wait_until([first, second], lambda: share([first, second], 6), what="sharing")
            assert len(first.owned or ()) == 3
            second.close()
        wait_until([first], lambda: first.owned == set(range(6)), what="take-over")
        first.close()


@pytest.mark.slow
def test_a_killed_members_partitions_move_after_its_session_times_out(
    driver: Driver, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(partitions=4), new_group()
    with driver.member(bootstrap, topic, group, assignor=UNIFORM) as first:
        with driver.member(bootstrap, topic, group, assignor=UNIFORM) as second:
            wait_until([first, second], lambda: share([first, second], 4), what="sharing")
            killed_at = time.monotonic()
            second.kill()
        wait_until([first], lambda: first.owned == set(range(4)), what="take-over")
        assert time.monotonic() - killed_at > 2, "the session cannot have timed out yet"
        first.close()


@pytest.mark.slow
def test_a_classic_client_and_one_of_the_new_protocol_share_a_group(
    bootstrap: str, new_topic: NewTopic
) -> None:
    must_be_installed(JAVA)
    topic, group = new_topic(partitions=4), new_group()
    for old, new in ((CONFLUENT, JAVA), (JAVA, CONFLUENT)):
        with old.member(bootstrap, topic, group, assignor="cooperative-sticky") as classic:
            wait_until([classic], lambda: classic.owned == set(range(4)), what="all")
            with new.member(bootstrap, topic, group, assignor=UNIFORM) as member:
                wait_until([classic, member], lambda: share([classic, member], 4), what="sharing")
                classic.close()
                wait_until([member], lambda: member.owned == set(range(4)), what="take-over")
                member.close()


@pytest.mark.slow
def test_members_notice_nothing_of_a_coordinator_that_is_killed(
    driver: Driver, tmp_path: Path
) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        cluster.create("t", partitions=4)
        members = [driver.member(cluster.addresses, "t", "g", assignor=UNIFORM) for _ in range(2)]
        with members[0] as first, members[1] as second:
            wait_until(members, lambda: share(members, 4), what="sharing")
            counts = [member.assignment_count for member in members]
            admin = AdminClient({"bootstrap.servers": cluster.addresses})
            found = admin.describe_consumer_groups(["g"])["g"].result(60)
            cluster.nodes[found.coordinator.id].kill()
            # Longer than a session: who was not known to the next coordinator would be out.
            until = time.monotonic() + 12
            while time.monotonic() < until:
                first.take_in(0.1)
                second.take_in(0.1)
            assert [member.assignment_count for member in members] == counts
