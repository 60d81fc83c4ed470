"""How many clients are remembered, for how long, and when they may ask and push."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_node.client_metrics.instances import EXPIRY_MS_MIN, INSTANCES_MAX, ClientInstances
from tidelog_node.client_metrics.subscriptions import Subscriptions
from tidelog_node.counters import ClientMetricsTraffic

from tests.support.request_contexts import a_session

INTERVAL_MS = 1000


def subscriptions() -> Subscriptions:
    configs = {"metrics": "x.", "interval.ms": str(INTERVAL_MS)}
    return Subscriptions({"s": ClientMetricsOverrides(subscription="s", configs=configs)})


class Clock:
    def __init__(self) -> None:
        self.ms = 5.0  # of a machine that has just started

    def __call__(self) -> float:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def instances(clock: Clock) -> ClientInstances:
    return ClientInstances(clock, ClientMetricsTraffic())


def test_the_client_used_longest_ago_is_forgotten_first(instances: ClientInstances) -> None:
    current, session = subscriptions(), a_session()
    first = instances.of(UUID(int=2), session, current)
    for number in range(3, INSTANCES_MAX + 2):
        instances.of(UUID(int=number), session, current)
    assert instances.of(UUID(int=2), session, current) is first
    for number in range(INSTANCES_MAX + 2, INSTANCES_MAX + 20):
        instances.of(UUID(int=number), session, current)
    assert len(instances) == INSTANCES_MAX
    assert UUID(int=2) in instances
    assert UUID(int=3) not in instances


def test_a_silent_client_is_new_again(instances: ClientInstances, clock: Clock) -> None:
    current, session = subscriptions(), a_session()
    first = instances.of(UUID(int=2), session, current)
    clock.ms += EXPIRY_MS_MIN
    assert instances.of(UUID(int=2), session, current) is first
    clock.ms += EXPIRY_MS_MIN + 1
    assert instances.of(UUID(int=2), session, current) is not first


def test_a_client_is_new_when_the_subscriptions_change(instances: ClientInstances) -> None:
    session = a_session()
    first = instances.of(UUID(int=2), session, subscriptions())
    first.is_terminating = True
    again = instances.of(UUID(int=2), session, subscriptions())
    assert again is not first
    assert not again.is_terminating


def test_a_client_is_forgotten_when_its_connection_ends(instances: ClientInstances) -> None:
    current, session = subscriptions(), a_session()
    instances.of(UUID(int=2), session, current)
    instances.of(UUID(int=3), a_session(), current)
    session.closed()
    assert UUID(int=2) not in instances
    assert UUID(int=3) in instances


def test_a_connection_with_many_ids_leaves_nothing_but_a_bounded_number(
    instances: ClientInstances,
) -> None:
    current, session = subscriptions(), a_session()
    for number in range(2, 100):
        instances.of(UUID(int=number), session, current)
    session.closed()
    assert len(instances) == 97
    assert len(instances._by_session) == 0


def test_a_request_of_a_connection_that_has_ended_leaves_no_session(
    instances: ClientInstances,
) -> None:
    """What was received before the end is handled after it."""
    session = a_session()
    session.closed()
    instances.of(UUID(int=2), session, subscriptions())
    assert len(instances._by_session) == 0


def test_a_client_may_ask_and_push_once_an_interval(
    instances: ClientInstances, clock: Clock
) -> None:
    one = instances.of(UUID(int=2), a_session(), subscriptions())
    assert one.may_ask(clock())
    assert not one.may_ask(clock())
    assert one.may_push(clock())
    assert not one.may_push(clock())
    clock.ms += INTERVAL_MS - 1
    assert not one.may_push(clock())
    assert not one.may_ask(clock())
    clock.ms += 1
    assert one.may_push(clock())
    assert not one.may_ask(clock())
    clock.ms += INTERVAL_MS
    assert one.may_ask(clock())
    assert one.may_push(clock())


def test_a_first_push_need_not_be_asked_for(instances: ClientInstances, clock: Clock) -> None:
    one = instances.of(UUID(int=2), a_session(), subscriptions())
    assert one.may_push(clock())
    assert not one.may_push(clock())


def test_a_client_may_ask_at_once_after_an_error_that_says_so(
    instances: ClientInstances, clock: Clock
) -> None:
    one = instances.of(UUID(int=2), a_session(), subscriptions())
    assert one.may_ask(clock())
    for code in (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type):
        one.last_error = code
        assert one.may_ask(clock())
    one.last_error = ErrorCode.telemetry_too_large
    assert not one.may_ask(clock())
