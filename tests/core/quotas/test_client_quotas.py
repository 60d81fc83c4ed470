"""Which quota counts for a client, and who shares it."""

from __future__ import annotations

import pytest
from tidelog_core.errors import InvalidRequest
from tidelog_core.quotas.client_quotas import ClientQuotas, Limit
from tidelog_core.quotas.quota_entity import NAME_SIZE_MAX, QuotaEntity, quota_entity
from tidelog_core.quotas.quota_keys import QuotaKey, checked_quota

PRODUCE, CONNECTIONS = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONNECTION_CREATION_RATE
# From the one that counts first to the last. Source: Kafka's ``ClientQuotaManager``.
IN_ORDER = [
    (QuotaEntity("ann", "a"), ("ann", "a")),
    (QuotaEntity("ann", ""), ("ann", "a")),
    (QuotaEntity("ann"), ("ann", "")),
    (QuotaEntity("", "a"), ("ann", "a")),
    (QuotaEntity("", ""), ("ann", "a")),
    (QuotaEntity(""), ("ann", "")),
    (QuotaEntity(None, "a"), ("", "a")),
    (QuotaEntity(None, ""), ("", "a")),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_most_specific_entity_counts(first: int) -> None:
    quotas = ClientQuotas.of(
        {entity: {PRODUCE.value: rate} for rate, (entity, _) in enumerate(IN_ORDER[first:], 1)}
    )
    assert quotas.limit(PRODUCE, "ann", "a") == Limit(IN_ORDER[first][1], 1)


def test_each_quota_is_looked_up_by_itself() -> None:
    quotas = ClientQuotas.of(
        {
            QuotaEntity("ann", "a"): {"request_percentage": 5},
            QuotaEntity(None, "a"): {PRODUCE.value: 7},
        }
    )
    assert quotas.limit(PRODUCE, "ann", "a") == Limit(("", "a"), 7)
    assert quotas.limit(QuotaKey.REQUEST_PERCENTAGE, "ann", "a") == Limit(("ann", "a"), 5)
    assert quotas.limit(QuotaKey.CONSUMER_BYTE_RATE, "ann", "a") is None
    assert quotas.limit(PRODUCE, "ann", "b") is None


def test_an_empty_client_id_has_the_quota_of_its_user_only() -> None:
    quotas = ClientQuotas.of({entity: {PRODUCE.value: 5} for entity, _ in IN_ORDER})
    assert quotas.limit(PRODUCE, "ann", "") == Limit(("ann", ""), 5)
    of_clients = ClientQuotas.of({QuotaEntity(None, ""): {PRODUCE.value: 5}})
    assert of_clients.limit(PRODUCE, "ann", "") is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    quotas = ClientQuotas.of(
        {
            quota_entity({"ip": None}): {CONNECTIONS.value: 5},
            quota_entity({"ip": "0:0::1"}): {CONNECTIONS.value: 7},
        }
    )
    assert quotas.connection_rate("::1") == 7
    assert quotas.connection_rate("10.0.0.1") == 5
    assert ClientQuotas().connection_rate("::1") is None


def test_names_are_bounded() -> None:
    quota_entity({"user": "x" * NAME_SIZE_MAX})
    with pytest.raises(InvalidRequest, match="1001 characters, allowed are 1000"):
        quota_entity({"client-id": "x" * (NAME_SIZE_MAX + 1)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_percentage_is_a_positive_number(value: float) -> None:
    with pytest.raises(InvalidRequest, match="request_percentage must be"):
        checked_quota(QuotaEntity("ann"), "request_percentage", value)
