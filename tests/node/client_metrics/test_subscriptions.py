"""Which subscriptions a client has, and the number that stands for them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_node.client_metrics.subscriptions import (
    ATTRIBUTE_SIZE_MAX,
    SubscribedMetrics,
    Subscriptions,
    client_attributes,
    subscription_id,
)

from tests.support.request_contexts import a_session

INSTANCE = UUID(int=2**127 + 99)


def subscriptions(**by_name: dict[str, str]) -> Subscriptions:
    return Subscriptions(
        {
            name: ClientMetricsOverrides(subscription=name, configs=configs)
            for name, configs in by_name.items()
        }
    )


def attributes(client_id: str = "c") -> dict[str, str]:
    session = a_session()
    session.note_client_id(client_id.encode())
    session.software_name, session.software_version = "apache-kafka-java", "4.1.2"
    return client_attributes(session, INSTANCE)


def test_a_client_pushes_the_union_as_often_as_the_shortest_interval() -> None:
    found = subscriptions(
        a={"metrics": "x.,y.", "interval.ms": "5000"},
        b={"metrics": "y.,z.", "interval.ms": "200", "match": "client_software_name=apache.*"},
        c={"metrics": "no", "interval.ms": "100", "match": "client_id=c,client_id=d"},
        d={"metrics": "no", "interval.ms": "100", "match": "client_id=c,client_source_port=1"},
    ).wanted_of(attributes())
    assert found == SubscribedMetrics(("x.", "y.", "z."), 200)


def test_all_metrics_are_no_others() -> None:
    found = subscriptions(a={"metrics": "x."}, b={"metrics": "*"}).wanted_of(attributes())
    assert found == SubscribedMetrics(("*",), 300_000)


def test_an_interval_longer_than_the_default_is_the_default() -> None:
    """As in Kafka, which begins with the default and looks for shorter ones."""
    found = subscriptions(a={"metrics": "x.", "interval.ms": "3600000"}).wanted_of(attributes())
    assert found.interval_ms == 300_000


def test_a_subscription_whose_pattern_this_program_cannot_read_matches_nobody() -> None:
    found = subscriptions(a={"metrics": "x.", "match": "client_id=("}).wanted_of(attributes())
    assert found == SubscribedMetrics((), 300_000)


def test_every_attribute_can_be_matched() -> None:
    for name, value in attributes().items():
        pattern = f"{name}={value.replace('.', '[.]')}"
        found = subscriptions(a={"metrics": "x.", "match": pattern}).wanted_of(attributes())
        assert found.metrics == ("x.",), name


def test_what_a_client_says_of_itself_is_cut() -> None:
    assert all(len(one) <= ATTRIBUTE_SIZE_MAX for one in attributes("x" * 30_000).values())


def test_the_number_differs_by_client_metrics_and_interval() -> None:
    wanted = SubscribedMetrics(("a.",), 1000)
    numbers = {
        subscription_id(wanted, INSTANCE),
        subscription_id(wanted, UUID(int=1)),
        subscription_id(SubscribedMetrics(("a.",), 2000), INSTANCE),
        subscription_id(SubscribedMetrics(("b.",), 1000), INSTANCE),
    }
    assert len(numbers) == 4


@given(st.uuids(), st.lists(st.text()))
def test_the_number_fits_its_field(instance_id: UUID, metrics: list[str]) -> None:
    assert -(2**31) <= subscription_id(SubscribedMetrics(tuple(metrics), 5), instance_id) < 2**31
